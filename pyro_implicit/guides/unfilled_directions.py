"""Guides whose draws do not fill the space of their latents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.guides.sampler import Sampler
from pyro_implicit.ops.logdet import is_zero

__all__ = ["Unfilled", "unfilled"]

_NUM_SPREAD_DRAWS = 64
#: output noise that is a smaller part of the latents' spread fills nothing
_MIN_FILLING_NOISE_SHARE = 0.1
_MAX_LATENTS_OF_SAMPLER = 10_000  # draws of more are dear


@dataclass(frozen=True)
class Unfilled:
    """
    Directions in which draws have the output noise alone.

    :param int directions: their number.
    :param int latents: number of the latents.
    :param float share: the output noise as a part of the latents' spread, in the middle.
    """

    directions: int
    latents: int
    share: float

    def __str__(self) -> str:
        return (
            f"the guide's noises fill {self.latents - self.directions} of {self.latents} "
            f"directions: in the other {self.directions} its draws have nothing but the output "
            f"noise, {self.share:.1%} of the latents' spread, where a posterior has more. Leave "
            "noise_dim out, or learn the noise of each latent: "
            "HyperNetworkGuide(model, learn_scale='diagonal')"
        )


@torch.no_grad()
def unfilled(samplers: Iterable[Any]) -> Unfilled | None:
    """
    Looks for directions that a guide with fewer noises than latents leaves to its output noise.

    It tells them where that noise is a small part of the latents' spread, as noise that is learned
    for each of them is not. Each such direction costs the evidence bound about the logarithm of the
    posterior's deviation there over that of the noise, less a half.

    :param samplers: of a guide, one for each independent part; parts of more than 10 000 latents
        are not looked at.
    :returns: what was found; None if there is nothing.
    """
    directions, latents, shares = 0, 0, [1.0]
    for sampler in samplers:
        m, d = sampler.generator.output_dim, sampler.generator.noise_dim
        latents += m
        if d >= m or m > _MAX_LATENTS_OF_SAMPLER or is_zero(sampler.scale):
            continue
        share = float((_noise(sampler) / _spread(sampler)).median())
        if share < _MIN_FILLING_NOISE_SHARE:
            directions, shares = directions + m - d, [*shares, share]
    return Unfilled(directions, latents, min(shares)) if directions else None


def _noise(sampler: Sampler) -> Tensor:
    """The deviation of each latent that is output noise, shape ``(m,)``."""
    scale, factor = sampler.scale, sampler.preconditioner.factor
    m = sampler.generator.output_dim
    each = torch.as_tensor(scale).to(sampler.preconditioner.loc).expand(m)
    if factor is None:
        return each
    deviations: Tensor = factor * each
    return deviations.abs() if factor.dim() == 1 else deviations.square().sum(-1).sqrt()


def _spread(sampler: Sampler) -> Tensor:
    """The deviation of each latent, shape ``(m,)``."""
    spread: Tensor = sampler.distribution().sample((_NUM_SPREAD_DRAWS,)).std(0)
    return spread.clamp(min=1e-30)
