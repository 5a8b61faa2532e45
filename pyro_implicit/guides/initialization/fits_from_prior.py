"""Mean-field fits of a small network from draws of its prior, by steps of little noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.guides.initialization.mean_field import MeanField, fit_mean_field
from pyro_implicit.guides.initialization.trials import Trials

__all__ = ["NUM_PRIOR_DRAWS", "fit_from_prior"]

NUM_PRIOR_DRAWS = 5
_NUM_STEPS, _DRAWS_PER_STEP = 1000, 16
_PACE = 0.5  # factor on the rates of a quick fit
_INITIAL_SD = 0.1
#: draws that one run of the model takes at least: with thousands of rows the fits would take
#: minutes, and there is more to learn than a quick fit gives up
_MIN_AT_ONCE = 400


def fit_from_prior(trials: Trials, begins: Sequence[Tensor]) -> tuple[MeanField, str]:
    """
    The best of some mean-field fits, each from a draw of the prior.

    Where weights are small a deep network hardly depends on them, and with one draw a step they are
    given up to the prior. What units learn depends on where they begin: for a network of four
    layers two draws of five led to bounds 30 nats above the others'.

    :param Trials trials: has the density.
    :param begins: the draws, shape ``(m,)`` each.
    :returns: the fit, and a note where it did not end.
    :raises ValueError: for a model that takes few draws in one run, or whose value at one draw is
        another among several; where no draw has a finite density.
    """
    if 0 < trials.density.most_at_once < _MIN_AT_ONCE:
        raise ValueError("the model takes few draws in one run, of so many rows")
    if not trials.density.most_at_once:
        raise ValueError("the model does not take several draws in one run (torch.func.vmap)")
    with torch.no_grad():
        begins = [loc for loc in begins if bool(trials.density(loc).isfinite())]
    if not begins:
        raise ValueError("no draw of the prior has a finite density")

    def worth(one: MeanField) -> float:
        bound = objective(trials.density, one.loc, one.scale)
        found = math.isfinite(bound)
        return bound + trials.nats_of_copies(one.loc, one.scale) if found else -math.inf

    fit = max((_fitted(trials, loc) for loc in begins), key=worth)
    return fit, "" if fit.is_level else f"not level after {_NUM_STEPS} steps"


def _fitted(trials: Trials, loc: Tensor) -> MeanField:
    scale, unit = torch.full_like(loc, _INITIAL_SD), torch.ones_like(loc)
    example = loc + scale * torch.randn(_DRAWS_PER_STEP, len(loc)).to(loc)
    density = trials.density.recorded_at_draws(example)
    return fit_mean_field(
        density, loc, scale, _NUM_STEPS, unit, pace=_PACE, num_samples=_DRAWS_PER_STEP
    )
