"""Starts for a search of peaks, out of many points that no known peak is uphill of."""

# Shape legend: n points, k draws, m unconstrained latents.
from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.search_density import SearchDensity

__all__ = ["screened_starts"]

_DRAWS_THAT_TELL = 3  # how many can be asked for at once
_MAX_POINTS = 8192
_MAX_MAPS = 4  # runs of the model on as many points as it takes at once, in all
_MAX_STARTS = 4
_PRIOR_DEVIATIONS, _GUIDE_DEVIATIONS = 1.2, 4.0
_DEVIATIONS_BETWEEN_QUARTILES = 1.349  # of a normal distribution
_PLACES_ON_THE_WAY = (0.06, 0.15, 0.35, 0.65, 0.9)  # close where a peak may be narrow
_MIN_DIP_IN_NATS = 1.0


def screened_starts(
    density: SearchDensity, prior: Tensor, draws: Tensor, peaks: Sequence[Tensor]
) -> Iterator[Tensor]:
    """
    Chooses points from which the way to each known peak leads through a dip.

    The dozen starts of a search miss a peak that few points lead to. Of thousands, in the space
    that the prior and the guide fill, nearly all are uphill of a known peak on a straight line, as
    a few places on it tell; of the others the highest is a start, and the next one is chosen when
    its peak is known. Nothing is chosen where the model cannot be run for all points at once.

    :param SearchDensity density: the log-density.
    :param torch.Tensor prior: draws of the prior, shape ``(k, m)``.
    :param torch.Tensor draws: draws of the guide, shape ``(k, m)``.
    :param peaks: points that are known; may grow between two starts.
    :returns: starts, shape ``(m,)`` each.
    """
    density.at_draws(draws[:_DRAWS_THAT_TELL])
    looks = 1 + len(_PLACES_ON_THE_WAY) * len(peaks)  # later peaks are looked for from a few points
    cloud = _cloud(prior, draws, min(_MAX_POINTS, _MAX_MAPS * density.most_at_once // looks))
    if not len(cloud):
        return
    values = density.mapped(cloud)
    cloud, values = cloud[values.isfinite()], values[values.isfinite()]
    known = 0
    for _ in range(_MAX_STARTS):
        while known < len(peaks):
            cloud, values = _apart(cloud, values, peaks[known], density)
            known += 1
        if not len(cloud):
            return
        start = cloud[values.argmax()]
        yield start
        cloud, values = _apart(cloud, values, start, density)


def _cloud(prior: Tensor, draws: Tensor, count: int) -> Tensor:
    """Points about the quartiles of the prior, and far about the guide."""
    lower, loc, upper = prior.quantile(torch.tensor([0.25, 0.5, 0.75]).to(prior), 0)
    scale = _PRIOR_DEVIATIONS / _DEVIATIONS_BETWEEN_QUARTILES * (upper - lower)
    noise = torch.randn(count, prior.shape[-1]).to(prior)
    half = count // 2
    far = draws.mean(0) + _GUIDE_DEVIATIONS * draws.std(0) * noise[half:]
    return torch.cat([loc + scale * noise[:half], far])


def _apart(
    cloud: Tensor, values: Tensor, peak: Tensor, density: SearchDensity
) -> tuple[Tensor, Tensor]:
    """Those points that a dip parts from a peak, with their densities."""
    if not len(cloud):
        return cloud, values
    highest, is_apart = values, torch.zeros_like(values, dtype=torch.bool)
    for share in _PLACES_ON_THE_WAY:
        here = density.mapped(cloud + share * (peak - cloud)).nan_to_num(nan=-torch.inf)
        is_apart |= here < highest - _MIN_DIP_IN_NATS
        highest = highest.maximum(here)
    return cloud[is_apart], values[is_apart]
