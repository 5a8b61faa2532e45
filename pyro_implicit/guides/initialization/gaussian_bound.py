"""The evidence bound of a Gaussian, on draws that are always the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["gaussian_draws", "objective"]


def objective(
    density: Callable[[Tensor], Tensor], loc: Tensor, factor: Tensor, num_samples: int = 16
) -> float:
    """
    Estimates the evidence bound of a Gaussian on fixed draws.

    :param density: log-density of one point; one with a method ``at_draws`` is asked by that.
    :param torch.Tensor loc: mean, shape ``(m,)``.
    :param torch.Tensor factor: a root of the covariance, ``(m,)`` or ``(m, m)``.
    :param int num_samples: number of draws, always the same ones.
    :returns: an estimate of the Gaussian's evidence lower bound; minus infinity where the density
        of a draw is not finite.
    """
    _, draws, volume = gaussian_draws(loc, factor, num_samples)
    entropy = volume + 0.5 * loc.numel() * (1 + math.log(2 * math.pi))
    with torch.no_grad():
        many = getattr(density, "at_draws", None)
        values = torch.stack([density(u) for u in draws]) if many is None else many(draws)
        mean = float(values.mean())
    return mean + entropy if math.isfinite(mean) else -math.inf


def gaussian_draws(loc: Tensor, factor: Tensor, num_samples: int) -> tuple[Tensor, Tensor, float]:
    """
    Draws from a Gaussian, always by the same noise.

    :param torch.Tensor loc: mean, shape ``(m,)``.
    :param torch.Tensor factor: a root of the covariance, ``(m,)`` or ``(m, m)``.
    :param int num_samples: number ``n`` of draws.
    :returns: the noise and the draws, shape ``(n, m)`` each, and the log-determinant of the root.
    """
    random = torch.Generator("cpu").manual_seed(1)
    noise = torch.randn(num_samples, loc.numel(), generator=random, device="cpu").to(loc)
    wide = factor.double() if factor.device.type != "mps" else factor
    if factor.dim() == 1:
        return noise, loc + factor * noise, float(wide.log().sum())
    return noise, loc + noise @ factor.mT, float(torch.linalg.slogdet(wide).logabsdet)
