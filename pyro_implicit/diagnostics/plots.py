"""
Plots for those who would rather look than read.

Each draws on Matplotlib axes and returns them, or defers to ArviZ under the names of its installed
line.

What ArviZ draws already (marginals, pairs, intervals, LOO) is not here: give it
:func:`~pyro_implicit.to_arviz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._axes import new_or_given
from pyro_implicit._checks import (
    check_count,
    check_instance,
    check_names,
    check_number,
    check_tensor,
    check_tensors,
    check_text,
    shown,
)
from pyro_implicit._random import RandomStream
from pyro_implicit.arviz.compatibility import plot_loo_pit as _plot_loo_pit
from pyro_implicit.arviz.compatibility import plot_predictive_check as _plot_predictive_check
from pyro_implicit.diagnostics._reliability import (
    calibration_error,
    check_probabilities,
    reliability,
)
from pyro_implicit.diagnostics.entropy_report import EntropyReport
from pyro_implicit.diagnostics.vsbc import Calibration
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError

__all__ = [
    "plot_loo_pit",
    "plot_objective_terms",
    "plot_predictive_band",
    "plot_predictive_check",
    "plot_predictive_entropy",
    "plot_ranks",
    "plot_reliability",
    "plot_singular_values",
]


_EXPECTED_HISTORY = "a list of what objective.terms(model, guide, ...) returned"


def plot_predictive_band(
    x: Tensor, means: Tensor, predictive: Tensor, *, level: float = 0.9, ax: Any = None
) -> Any:
    """
    Where the next observation is expected, and how much of that is not knowing the function.

    The inner band holds the draws of the mean (epistemic), the outer one those of new observations
    (epistemic and aleatoric together).

    :param torch.Tensor x: one input, shape ``(N,)``, in any order.
    :param torch.Tensor means: draws of the mean, as of ``predict(..., sites=["mean"])``, shape
        ``(S, N)``.
    :param torch.Tensor predictive: draws of observations, shape ``(S', N)``.
    :param float level: of both bands, between 0 and 1.
    :param ax: Matplotlib axes; new ones by default.
    :returns: the axes.
    :raises ArgumentError: for another level.
    :raises ShapeError: for other shapes.
    """
    level = check_number("level", level, above=0, below=1)
    for name, value in (("x", x), ("means", means), ("predictive", predictive)):
        check_tensor(name, value)
    if x.dim() != 1 or means.shape[1:] != x.shape or predictive.shape[1:] != x.shape:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}, means {tuple(means.shape)}, predictive "
            f"{tuple(predictive.shape)}; expected (N,), (S, N) and (S', N)"
        )
    ax = new_or_given(ax)
    order = x.argsort()
    tails = torch.tensor([0.5 * (1 - level), 0.5 * (1 + level)])
    bands = (
        (predictive, 0.25, f"{level:.0%} of observations (all uncertainty)"),
        (means, 0.5, f"{level:.0%} of the mean (epistemic)"),
    )
    places = _array(x[order])
    for draws, alpha, label in bands:
        low, high = torch.quantile(
            draws.detach().double(), tails.to(draws.device, torch.float64), dim=0
        )
        ax.fill_between(
            places,
            _array(low[order]),
            _array(high[order]),
            alpha=alpha,
            color="C0",
            label=label,
            lw=0,
        )
    ax.plot(places, _array(means.mean(0)[order]), color="C0", label="mean")
    ax.legend()
    return ax


def plot_objective_terms(history: Sequence[Mapping[str, Any]], *, ax: Any = None) -> Any:
    """
    The parts of an objective over training.

    :param history: what ``objective.terms(model, guide, ...)`` returned, from time to time.
    :param ax: Matplotlib axes; new ones by default.
    :returns: the axes.
    :raises ArgumentError: for an empty history, or one whose entries have different terms.
    """
    check_instance("history", history, (list, tuple), _EXPECTED_HISTORY)
    for index, terms in enumerate(history):
        check_instance(f"history[{index}]", terms, Mapping, "a dictionary of terms")
        for name in check_names(f"history[{index}]", list(terms)):
            check_number(f"history[{index}][{name!r}]", terms[name])
    names = list(history[0]) if history else []
    if not names or any(list(terms) != names for terms in history):
        raise ArgumentError(
            f"history is empty or its entries have different terms; expected {_EXPECTED_HISTORY}"
        )
    ax = new_or_given(ax)
    columns = {name: [_number(terms[name]) for terms in history] for name in names}
    for name, values in columns.items():
        ax.plot(values, label=name.replace("_", " "))
    total = [sum(row) for row in zip(*columns.values(), strict=True)]
    ax.plot(total, color="black", lw=2, label="objective")
    ax.set(xlabel="evaluation", ylabel="nats")
    ax.legend()
    return ax


def plot_singular_values(report: EntropyReport, *, ax: Any = None) -> Any:
    """
    Plots the singular values of the guide's Jacobian, in units of the latents' spread.

    Median and range over draws are shown. A step down to almost nothing is a direction that the
    guide has lost.

    :param EntropyReport report: from :func:`~pyro_implicit.entropy_report`.
    :param ax: Matplotlib axes; new ones by default.
    :returns: the axes.
    :raises ArgumentError: for anything else.
    :raises MissingExtraError: without Matplotlib.
    """
    check_instance("report", report, EntropyReport, "what entropy_report returned")
    ax = new_or_given(ax)
    values = report.singular_values.sort(-1, descending=True).values
    places = range(1, values.shape[-1] + 1)
    middle = values.median(0).values
    ax.fill_between(
        places, _array(values.min(0).values), _array(values.max(0).values), alpha=0.3, lw=0
    )
    ax.plot(places, _array(middle), "o-", ms=3)
    if bool((middle > 0).all()):
        ax.set_yscale("log")
    ax.set(
        xlabel="direction",
        ylabel="singular value",
        title=f"effective rank {report.effective_rank:.1f}",
    )
    return ax


def plot_predictive_entropy(probabilities: Tensor | Mapping[str, Tensor], *, ax: Any = None) -> Any:
    """
    The empirical distribution function of predictive entropies.

    On data unlike those trained on it should stay low until near the right end: all entropies
    large.

    :param probabilities: class probabilities, shape ``(N, C)``, or by label for several curves.
    :param ax: Matplotlib axes; new ones by default.
    :returns: the axes.
    :raises ArgumentError: for numbers that are no probabilities, such as logits.
    :raises ShapeError: for other shapes.
    """
    curves = probabilities if isinstance(probabilities, Mapping) else {"": probabilities}
    check_tensors("probabilities", curves, "class probabilities, (N, C), or several by label")
    for table in curves.values():
        if table.dim() != 2:
            raise ShapeError(f"probabilities have shape {tuple(table.shape)}; expected (N, C)")
        check_probabilities("probabilities", table)
    ax = new_or_given(ax)
    most = 0.0
    for label, table in curves.items():
        entropies = torch.special.entr(table.detach()).sum(-1)
        ax.ecdf(_array(entropies), label=label or None)
        most = max(most, float(torch.tensor(float(table.shape[1])).log()))
    ax.axvline(most, color="grey", ls=":")
    ax.set(xlabel="predictive entropy (nats)", ylabel="share of data", ylim=(0, 1))
    if isinstance(probabilities, Mapping):
        ax.legend()
    return ax


def plot_reliability(
    probabilities: Tensor, labels: Tensor, *, num_bins: int = 10, ax: Any = None
) -> Any:
    """
    Plots how often the predicted class is right by how sure the prediction was.

    The title has the expected calibration error of torchmetrics.

    :param torch.Tensor probabilities: class probabilities, shape ``(N, C)``.
    :param torch.Tensor labels: true classes, shape ``(N,)``.
    :param int num_bins: bins of equal width.
    :param ax: Matplotlib axes; new ones by default.
    :returns: the axes.
    :raises ArgumentError: for numbers that are no probabilities, such as logits.
    :raises MissingExtraError: without torchmetrics.
    :raises ShapeError: for other shapes.
    """
    confidence, accuracy, share = reliability(probabilities, labels, num_bins)
    error = calibration_error(probabilities, labels, num_bins)
    ax = new_or_given(ax)
    filled = share > 0
    ax.plot([0, 1], [0, 1], color="grey", ls=":")
    ax.scatter(
        _array(confidence[filled]),
        _array(accuracy[filled]),
        s=10 + 300 * _array(share[filled]),
        alpha=0.7,
    )
    ax.plot(_array(confidence[filled]), _array(accuracy[filled]))
    ax.set(
        xlabel="confidence",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"expected calibration error {error:.3f}",
    )
    return ax


def plot_ranks(
    calibration: Calibration, name: str | None = None, index: int = 0, *, ax: Any = None
) -> Any:
    """
    Plots the histogram of the ranks of one latent entry.

    The band holds 99% of the bars of uniform ranks. A U says too narrow, a hump too wide, a slope
    biased.

    :param Calibration calibration: from :func:`~pyro_implicit.diagnostics.vsbc`.
    :param str name: of the site or quantity; by default the first.
    :param int index: of the entry, counted flat.
    :param ax: Matplotlib axes; new ones by default.
    :returns: the axes.
    :raises ArgumentError: for an index that it has not.
    :raises SiteError: for another name.
    """
    check_instance("calibration", calibration, Calibration, "what vsbc returned")
    name = next(iter(calibration.ranks)) if name is None else check_text("name", name)
    if name not in calibration.ranks:
        raise SiteError(f"no ranks of {name!r}; there are {sorted(calibration.ranks)}")
    entries = calibration.ranks[name].numel() // calibration.num_simulations
    index = check_count("index", index, 0, entries - 1, f" ({name!r} has {entries} entries)")
    ax = new_or_given(ax)
    n, bins, num_ranks = calibration.num_simulations, calibration.bins, calibration.num_samples + 1
    ranks = calibration.ranks[name].reshape(n, -1)[:, index]
    ax.hist(_array(ranks), bins=bins, range=(-0.5, num_ranks - 0.5), color="C0", alpha=0.7)
    with RandomStream(0):
        bars = torch.distributions.Binomial(n, torch.tensor(1.0 / bins)).sample((20_000,))
    low, high = torch.quantile(bars, torch.tensor([0.005, 0.995])).tolist()
    ax.axhspan(low, high, color="grey", alpha=0.3, zorder=0)
    ax.axhline(n / bins, color="grey")
    ax.set(xlabel=f"rank of {name} among {calibration.num_samples} draws", ylabel="simulations")
    return ax


def plot_predictive_check(data: Any, **options: Any) -> Any:
    """
    Plots observed data among posterior predictive draws, by ArviZ.

    This is ``az.plot_ppc`` of ArviZ 0.x, or ``az.plot_ppc_dist`` of ArviZ >= 1.

    :param data: from :func:`~pyro_implicit.to_arviz`, of one guide.
    :param options: of that function.
    :returns: what that returns.
    """
    _check_data(data)
    return _plot_predictive_check(data, **options)


def plot_loo_pit(data: Any, var_name: str, **options: Any) -> Any:
    """
    Leave-one-out probability integral transforms: ``az.plot_loo_pit`` of both lines of ArviZ.

    Uniform if the predictive distribution of each datum, given all others, is right.

    :param data: from :func:`~pyro_implicit.to_arviz`, of one guide.
    :param str var_name: the observed site, with a continuous distribution.
    :param options: of that function.
    :returns: what that returns.
    :raises ArgumentError: for anything else than such data.
    :raises SiteError: if no site of that name is observed.
    """
    _check_data(data)
    observed = sorted(data["observed_data"].data_vars)
    if check_text("var_name", var_name) not in observed:
        raise SiteError(f"no observed site {var_name!r}; there are {observed}")
    return _plot_loo_pit(data, var_name, **options)


def _check_data(data: Any) -> None:
    """Whether it is what to_arviz returns for a guide and data, of either line of ArviZ."""
    names = ("observed_data", "posterior_predictive")
    if not all(hasattr(getattr(data, name, None), "data_vars") for name in names):
        raise ArgumentError(
            f"data={shown(data)}; expected what to_arviz returned, with the groups "
            "'observed_data' and 'posterior_predictive'."
        )


def _number(value: Any) -> float:
    return value.detach().item() if isinstance(value, Tensor) else float(value)


def _array(value: Tensor) -> Any:
    return value.detach().cpu().numpy()
