r"""
Whether chains sample the density that they move in, by an identity of its gradient.

References

- `Measuring Sample Quality with Stein's Method`, J. Gorham, L. Mackey, NeurIPS, 2015: identities
  that draws of a density fulfil, of which this is the one of linear functions.
"""

# Shape legend: C chains, T draws of each, m unconstrained latents.
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_implicit._warn import warn

__all__ = ["virials", "warn_of_virials"]

_MIN_STANDARD_ERRORS_OFF = 4.5  # of 15 chains: once in 2000 sites by chance
_MIN_DISTANCE_FROM_ONE = 0.075


def virials(draws: Tensor, gradients: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    r"""
    The means of :math:`-(u - \bar u)\, \partial \log p / \partial u` by site, 1 for draws of ``p``.

    For any density that falls to zero, :math:`E[(u_i - c)\, \partial_i \log p] = -1` by parts. Of
    a normal one it is the ratio of the variance of the draws to its own.

    :param torch.Tensor draws: shape ``(C, T, m)``.
    :param torch.Tensor gradients: of the log-density there, shape ``(C, T, m)``.
    :param sizes: numbers of latents of each site, which sum to ``m``.
    :returns: means over the latents of each site, and standard errors by the spread over chains,
        shape ``(number of sites,)`` each, in float64.
    """
    u, gradient = draws.double(), gradients.double()
    by_chain = -((u - u.mean((0, 1))) * gradient).mean(1)
    parts = [part.mean(-1) for part in by_chain.split(list(sizes), -1)]
    by_site = torch.stack(parts, -1)
    return by_site.mean(0), by_site.std(0) / math.sqrt(len(by_site))


def warn_of_virials(
    found: tuple[Tensor, Tensor], names: Sequence[str], energy_error: float
) -> None:
    """
    Warns where chains without an accept step do not sample their density.

    :param tuple found: what :func:`virials` returned.
    :param names: of the sites.
    :param float energy_error: that the step size was tuned to.
    """
    mean, error = found
    is_off = ((mean - 1).abs() > _MIN_DISTANCE_FROM_ONE) & (
        (mean - 1).abs() > _MIN_STANDARD_ERRORS_OFF * error
    )
    off = [(name, float(mean[i])) for i, name in enumerate(names) if bool(is_off[i])]
    if not off:
        return
    off.sort(key=lambda pair: -abs(pair[1] - 1))
    few = ", ".join(f"{name!r} ({value:.2f})" for name, value in off[:3])
    more = f" and {len(off) - 3} more" if len(off) > 3 else ""
    warn(
        "the step size of mclmc biases these chains, which r-hat does not see: by the gradients at "
        f"the draws, variances of sites {few}{more} are off by about these factors or by more, "
        "and means may be. kernel='hmc' has no such bias; "
        f"kernel=MCLMC(energy_error={energy_error / 16:.1g}) has two fifths of it"
    )
