"""Several fitted guides as one: a mixture of their draws."""

# Shape legend: K guides, n data.
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pyro.poutine.runtime import get_plates
from torch import Tensor

from pyro_implicit._checks import (
    check_count,
    check_flag,
    check_guide,
    check_instance,
    check_model,
    check_number,
    shown,
)
from pyro_implicit.arviz.compatibility import loo_by_datum
from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.exceptions import ArgumentError, GuideError, SiteError
from pyro_implicit.guides.draw_quantiles import DrawQuantiles
from pyro_implicit.inference.log_predictive_density import log_predictive_density
from pyro_implicit.inference.posterior_draws import draws_of
from pyro_implicit.ops.stacking import stacking_weights

__all__ = ["EnsembleGuide"]

_MAX_WEIGHTS_PRINTED = 8


class EnsembleGuide(DrawQuantiles):
    r"""
    A mixture of fitted guides, such as modes from several starts: a deep ensemble.

    It is used wherever a guide is drawn from: ``predict``, ``posterior_draws``,
    ``log_predictive_density``, ``to_arviz``. Weights are equal, given, or those of stacking, which
    maximise the predictive density of the mixture. They are never those of the evidence bounds,
    which differ by many nats for reasons of the fit and would pick one guide.

    Stacking by leave-one-out densities (through ArviZ) needs no further data, but draws that
    vary. For point estimates, and where Pareto-smoothed weights are unreliable, pass data that no
    guide was fitted to, with ``held_out=True``.

    :param guides: fitted guides of one model.
    :param weights: None: equal; ``"stacking"``; or numbers, which are divided by their sum.
    :param model: for stacking, the model.
    :param data: for stacking, a tuple of its arguments.
    :param bool held_out: for stacking, whether these are data that the guides have not seen.
    :param int num_samples: for stacking, draws of each guide.
    :raises ArgumentError: for bad values; for leave-one-out densities of a guide whose draws are
        all the same, or of several observed sites.
    :raises NonFiniteError: if stacking meets densities that are NaN, or all 0. Data with a density
        of 0 under every guide are left out of it, with a warning.
    :raises SiteError: if the guides do not draw the same sites, in the same shapes, when they are
        drawn from.

    Example::

        modes = refine(model, 16, x, y, num_steps=0).split()      # sixteen MAP fits
        equal = EnsembleGuide(modes)
        stacked = EnsembleGuide(modes, "stacking", model=model, data=(x_val, y_val), held_out=True)
        predict(model, stacked, x_test, num_samples=1000)

    Source: `Using Stacking to Average Bayesian Predictive Distributions`, Y. Yao, A. Vehtari,
    D. Simpson, A. Gelman.
    """

    #: for posterior_draws: members may need the arguments of the model
    sample_takes_arguments = True

    def __init__(
        self,
        guides: Sequence[Callable[..., Any]],
        weights: str | Sequence[float] | None = None,
        *,
        model: Callable[..., Any] | None = None,
        data: tuple[Any, ...] | None = None,
        held_out: bool = False,
        num_samples: int = 1000,
    ) -> None:
        check_instance("guides", guides, (list, tuple), "a list of fitted guides")
        if not guides:
            raise ArgumentError("guides is empty; expected one fitted guide at least.")
        self.guides = [check_guide(guide, f"guides[{i}]") for i, guide in enumerate(guides)]
        check_flag("held_out", held_out)
        num_samples = check_count("num_samples", num_samples)
        if model is not None:
            check_model(model)
        if data is not None:
            check_instance("data", data, tuple, "a tuple of the model's arguments, such as (x, y)")
        #: the share of each guide, shape ``(K,)``, in float64
        self.weights = (
            self._stacked(model, data, held_out, num_samples)
            if isinstance(weights, str) and weights == "stacking"
            else _normalised(weights, len(self.guides))
        )

    def _stacked(self, model: Any, data: Any, held_out: bool, num_samples: int) -> Tensor:
        """The weights of stacking."""
        if model is None or data is None:
            raise ArgumentError(
                "weights='stacking' needs the model and data to judge by: EnsembleGuide(guides,"
                " 'stacking', model=model, data=(x, y))."
            )
        score = _held_out if held_out else _leave_one_out
        columns = [
            score(model, guide, data, num_samples, number)
            for number, guide in enumerate(self.guides)
        ]
        return stacking_weights(torch.stack(columns, -1))

    def __repr__(self) -> str:
        shares = [f"{weight:.3g}" for weight in self.weights.tolist()]
        if len(shares) > _MAX_WEIGHTS_PRINTED:
            shares = [*shares[: _MAX_WEIGHTS_PRINTED - 1], "...", shares[-1]]
        count = len(self.guides)
        return f"EnsembleGuide({count} guide{'s' * (count > 1)}, weights {', '.join(shares)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """
        Picks a guide and runs it, with all of its sites: densities are those of that guide.

        Pyro's ``Predictive`` expects the same sites in each run, which guides of different kinds do
        not have (noise, a joint latent): take :func:`~pyro_implicit.predict` for these.

        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        :returns: what the guide returns.
        :raises GuideError: inside of a vectorised plate, where all draws would be of one guide.
        """
        around = [plate.name for plate in get_plates() if plate.vectorized]
        if around:
            raise GuideError(
                f"an ensemble picks one guide for each run, and plate {around[0]!r} around it "
                "would take many draws of that one. Use guide.sample(num_samples), or predict(...)."
            )
        pick = int(torch.multinomial(self.weights, 1))
        return self.guides[pick](*args, **kwargs)

    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Draws from all guides, each as often as its weight says, in random order.

        :param int num_samples: how many draws in all.
        :param args: arguments of the model, for guides that need them.
        :param kwargs: keyword arguments of the model.
        :returns: draws by site, shape ``(num_samples, *site_shape)``.
        :raises ArgumentError: unless ``num_samples`` is a positive integer.
        :raises SiteError: if the guides do not draw the same sites.
        """
        num_samples = check_count("num_samples", num_samples)
        parts: list[Mapping[str, Tensor]] = [
            draws_of(guide, count, *args, **kwargs)
            for guide, count in zip(self.guides, self._counts(num_samples), strict=True)
            if count
        ]
        for part in parts:
            if part.keys() != parts[0].keys():
                raise SiteError(
                    f"the guides of the ensemble draw different sites: {sorted(parts[0])} and "
                    f"{sorted(part)}; expected guides of one model."
                )
            for name, value in part.items():
                shape, first = tuple(value.shape[1:]), tuple(parts[0][name].shape[1:])
                if shape != first:
                    raise SiteError(
                        f"the guides of the ensemble draw site {name!r} in shapes {first} and "
                        f"{shape}; expected guides of one model, and of the same rows."
                    )
        order = torch.randperm(num_samples)
        return {
            name: torch.cat([part[name] for part in parts])[order.to(value.device)]
            for name, value in parts[0].items()
        }

    def _counts(self, num_samples: int) -> list[int]:
        """By systematic sampling: each within one of its share."""
        edges = num_samples * self.weights.cumsum(0)
        edges[-1] = num_samples
        upper = torch.ceil(edges - float(torch.rand(()))).clamp(0, num_samples).long().tolist()
        upper[-1] = num_samples
        return [high - low for low, high in zip([0, *upper[:-1]], upper, strict=True)]


def _normalised(weights: Any, count: int) -> Tensor:
    if weights is None:
        return torch.full((count,), 1.0 / count, dtype=torch.float64)
    is_tensor = isinstance(weights, Tensor) and weights.is_floating_point()
    if is_tensor or isinstance(weights, np.ndarray):
        weights = weights.tolist()
    if not isinstance(weights, (list, tuple)) or len(weights) != count:
        raise ArgumentError(
            f"weights={shown(weights)}; expected None for equal ones, 'stacking', or {count} "
            "numbers, one for each guide."
        )
    numbers = [check_number(f"weights[{i}]", one, minimum=0) for i, one in enumerate(weights)]
    if not sum(numbers) > 0:
        raise ArgumentError(f"weights={shown(weights)}; expected one at least that is not 0.")
    return torch.tensor(numbers, dtype=torch.float64) / sum(numbers)


def _held_out(model: Any, guide: Any, data: Any, num_samples: int, number: int) -> Tensor:
    return log_predictive_density(model, guide, *data, num_samples=num_samples).double()


def _leave_one_out(model: Any, guide: Any, data: Any, num_samples: int, number: int) -> Tensor:
    exported = to_arviz(
        model, guide, *data, num_samples=num_samples, groups=("posterior", "log_likelihood")
    )
    sites = list(exported["log_likelihood"].data_vars)
    if len(sites) > 1:
        raise ArgumentError(
            f"the model observes {sites}, and what is left out is ambiguous. Pass data that the "
            "guides have not seen, with held_out=True."
        )
    values = exported["log_likelihood"][sites[0]].values
    if not (values.std((0, 1)) > 0).any():
        raise ArgumentError(
            f"all draws of guide {number} are the same, so that leaving a datum out changes "
            "nothing, and the most overfitted would win. Pass data that the guides have not seen, "
            "with held_out=True."
        )
    return torch.as_tensor(loo_by_datum(exported)).reshape(-1).double()
