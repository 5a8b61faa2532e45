"""One method on one split of a UCI set: chosen on validation rows, then fitted to all of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import trange

from benchmarks.common import fixed_seed
from benchmarks.papers.vip._uci_peers import PEERS
from benchmarks.papers.vip._uci_peers import SETTINGS as OF_PEERS
from benchmarks.papers.vip._vip_fits import Collapsed, Fit, Weights, negative_log_likelihood, train
from benchmarks.shared.uci import Split, build_model, score
from benchmarks.shared.uci_fits import Workbench, choice
from benchmarks.shared.uci_peers import gaussian_process, gaussian_scores, sparse_gaussian_process
from pyro_implicit.processes import NeuralSampler, RandomNetwork

__all__ = ["METHODS", "SETTINGS", "run_gaussian_process", "run_mean_field", "run_process"]

METHODS = (
    "network, collapsed",
    "network, alpha=0",
    "network, alpha=0.5",
    "sampler, collapsed",
    "sampler, alpha=0",
    "sampler, alpha=0.5",
    "mean-field",
    "exact GP",
    "sparse GP",
    *PEERS,
)
SETTINGS: dict[str, Any] = {
    "hidden units": [10, 10],
    "noise_dim": 10,
    "num_functions": {"collapsed": 50, "weights": 20, "prediction of collapsed": 200},
    "noise": 0.3,
    "rate": 0.01,
    "batch_size": 1000,
    "every": 50,
    "patience": 4,
    "noise_factors": [0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0],
    "exact GP": {"learn_from": 1000, "condition_on": 5000},
    "sparse GP": {"num_inducing": 100, "rate": 0.05},
    "sparse GP, steps": 300,
    "peers": OF_PEERS,
}


def run_process(
    method: str,
    held: Split,
    whole: Split,
    *,
    seed: int,
    max_steps: int,
    psis: Sequence[float],
    quiet: bool,
) -> dict[str, Any]:
    """
    :param str method: one of :data:`METHODS` but mean-field.
    :param Split held: part of the training rows to fit, the others to choose by.
    :param Split whole: all training rows to fit, the test rows to score once.
    :param int max_steps: where training ends that does not stop by itself.
    :param psis: of the collapsed objective, to choose from; 0 is none.
    :returns: what was chosen, and test scores in the units of the target.
    """
    options = {"seed": seed, "max_steps": max_steps, "quiet": quiet, "label": method}
    tried = [psi or None for psi in psis] if method.endswith("collapsed") else [None]
    chosen = min((_choose(method, held, psi, **options) for psi in tried), key=lambda row: row[0])
    nll, psi, num_steps, factor = chosen
    with fixed_seed(seed):
        fit = _make(method, whole.x.shape[1], psi)
        steps = _steps(num_steps, method, quiet)
        train(fit, whole.data, steps, rate=SETTINGS["rate"], batch_size=SETTINGS["batch_size"])
        with torch.no_grad():
            prediction = fit.predict(*whole.data, whole.x_held, factor)
    choices = {"steps": num_steps, "psi": psi, "noise_factor": factor, "noise": fit.noise.item()}
    choices |= {"validation_nll": nll + math.log(held.y_scale), "rows": len(whole.x)}
    return choices | _scores(whole, prediction)


def _choose(
    method: str,
    held: Split,
    psi: float | None,
    *,
    seed: int,
    max_steps: int,
    quiet: bool,
    label: str,
) -> tuple[float, float | None, int, float]:
    """Number of steps and factor of the noise, by the negative log-likelihood of held-out rows."""
    with fixed_seed(seed):
        fit = _make(method, held.x.shape[1], psi)

        def nll(factor: float = 1.0) -> float:
            prediction = fit.predict(*held.data, held.x_held, factor)
            return negative_log_likelihood(held.y_held, prediction)

        num_steps = train(
            fit,
            held.data,
            _steps(max_steps, f"{label}, psi={psi}", quiet),
            rate=SETTINGS["rate"],
            batch_size=SETTINGS["batch_size"],
            score=nll,
            every=min(SETTINGS["every"], max_steps),
            patience=SETTINGS["patience"],
        )
        with torch.no_grad():
            tried = [(nll(factor), factor) for factor in SETTINGS["noise_factors"]]
    best, factor = min(tried)
    return best, psi, num_steps, factor


def _make(method: str, num_features: int, psi: float | None) -> Fit:
    """The prior and the objective that a method names."""
    kind, _, objective = method.partition(", ")
    widths = SETTINGS["hidden units"]
    prior: nn.Module
    if kind == "network":
        prior = RandomNetwork(_network(num_features, widths))
    else:
        noise_dim = SETTINGS["noise_dim"]
        prior = NeuralSampler(num_features, noise_dim=noise_dim, hidden_dims=widths)
    counts = SETTINGS["num_functions"]
    if objective == "collapsed":
        predictive = counts["prediction of collapsed"]
        return Collapsed(prior, SETTINGS["noise"], counts["collapsed"], predictive, psi)
    alpha = float(objective.removeprefix("alpha="))
    return Weights(prior, SETTINGS["noise"], counts["weights"], alpha)


def _network(num_features: int, widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip([num_features, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def _scores(split: Split, prediction: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Of normal predictions, in the units of the target."""
    found = gaussian_scores(*(part.double() for part in prediction), split)
    return {"rmse": found["rmse"], "nll": -found["log_likelihood"], "coverage": found["coverage"]}


def _steps(count: int, label: str, quiet: bool) -> Iterable[int]:
    return trange(count, desc=label, disable=quiet, leave=False)


def run_mean_field(
    name: str, whole: Split, *, seed: int, effort: float, quiet: bool
) -> dict[str, Any]:
    """
    Mean-field VI of ``uci_regression``: one layer of 50 units, its settings.

    :param float effort: share of its steps.
    """
    model = build_model(whole.x.shape[1], len(whole.x))
    bench = Workbench(model, whole, seed, effort=effort, quiet=quiet)
    settings = choice("mean-field", name)
    draws, _ = bench.run("mean-field", settings)
    found = score(model, draws, whole)
    return {
        "steps": max(1, round(settings.num_steps * effort)),
        "rows": len(whole.x),
        "rmse": found["rmse"],
        "nll": -found["log_likelihood"],
        "coverage": found["coverage"],
    }


def run_gaussian_process(method: str, whole: Split, *, seed: int, quiet: bool) -> dict[str, Any]:
    """
    Nothing is held out: kernel and noise by the marginal likelihood, or its bound.

    :param str method: ``"exact GP"`` or ``"sparse GP"``.
    """
    if method == "sparse GP":
        steps = SETTINGS["sparse GP, steps"]
        options = {"steps": _steps(steps, method, quiet), **SETTINGS["sparse GP"]}
        prediction = sparse_gaussian_process(whole, seed, **options)
        return {"steps": steps, "rows": len(whole.x), **_scores(whole, prediction)}
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # the length scale of an input that tells nothing ends at its bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        prediction = gaussian_process(whole, seed, **SETTINGS["exact GP"])
    rows = min(len(whole.x), SETTINGS["exact GP"]["condition_on"])
    return {"steps": None, "rows": rows, **_scores(whole, prediction)}
