"""Maxima of a density from many starting points at once."""

# Shape legend: C chains, m unconstrained latents.
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.guides.initialization.lbfgs import maximise
from pyro_implicit.ops.adam_direction import AdamDirection

__all__ = ["find_modes"]

_MAX_LATENTS_FOR_CURVATURE = 32  # up to which L-BFGS is cheaper than many steps of Adam
_MAX_LBFGS_STEPS = 50
_LEARNING_RATE = 1e-2  # of Adam, at the start of its cosine schedule
#: Nats between the means of two looks, by square root of the number of latents: less is not worth
#: going on for.
_MAX_GAIN_WHEN_LEVEL = 0.01
_STEPS_BETWEEN_LOOKS = 100


def find_modes(
    density: ChainDensity, starts: Tensor, num_steps: int, bar: Any
) -> tuple[Tensor, bool]:
    """
    Climbs from each starting point.

    By L-BFGS, one after the other, up to 32 latents; else by Adam for all at once, at a rate that
    falls from 0.01 by a cosine, until none gains any more or the steps are over. Steps to where
    the density is not finite are not taken.

    :param ChainDensity density: ready for these points.
    :param torch.Tensor starts: where the density is finite, shape ``(C, m)``.
    :param int num_steps: most steps of Adam.
    :param bar: a progress bar.
    :returns: the points reached, shape ``(C, m)``, and whether it was interrupted.
    """
    if starts.shape[-1] <= _MAX_LATENTS_FOR_CURVATURE:
        return _by_curvature(density, starts, bar)
    return _by_adam(density, starts, num_steps, bar)


def _by_curvature(density: ChainDensity, starts: Tensor, bar: Any) -> tuple[Tensor, bool]:
    reached = list(starts)

    def counted(u: Tensor) -> Tensor:
        density.num_gradients += 1
        return density.log_joint.value(u)

    try:
        for index, start in enumerate(starts):
            reached[index] = maximise(counted, start, _MAX_LBFGS_STEPS)[0]
            bar.update()
    except KeyboardInterrupt:
        return torch.stack(reached), True
    return torch.stack(reached), False


def _by_adam(
    density: ChainDensity, starts: Tensor, num_steps: int, bar: Any
) -> tuple[Tensor, bool]:
    """Adam; a chain that meets a hole in the density stays."""
    u, direction = starts, AdamDirection()
    recent: list[Tensor] = []
    before = None
    try:
        for step in range(1, num_steps + 1):
            value, gradient = density(u)
            finite = value.isfinite() & gradient.isfinite().all(-1)
            gradient = torch.where(finite[:, None], gradient, torch.zeros_like(gradient))
            rate = _LEARNING_RATE * (0.02 + 0.49 * (1 + math.cos(math.pi * (step - 1) / num_steps)))
            u = u + rate * direction(gradient)
            bar.update()
            recent.append(value)
            if step % _STEPS_BETWEEN_LOOKS == 0:
                level = torch.stack(recent).nanmean(0)
                recent = []
                bar.set_postfix(lp=f"{float(level.mean()):.5g}", refresh=False)
                if before is not None and _is_level(level - before, u.shape[-1]):
                    break
                before = level
    except KeyboardInterrupt:
        return u, True
    return u, False


def _is_level(gain: Tensor, num_latents: int) -> bool:
    return bool((gain <= _MAX_GAIN_WHEN_LEVEL * math.sqrt(num_latents)).all())
