"""The evidence bound of a Gaussian, on draws that are always the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["objective"]


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
    random = torch.Generator("cpu").manual_seed(1)
    noise = torch.randn(num_samples, loc.numel(), generator=random, device="cpu").to(loc)
    wide = factor.double() if factor.device.type != "mps" else factor
    if factor.dim() == 1:
        draws, volume = loc + factor * noise, float(wide.log().sum())
    else:
        draws, volume = loc + noise @ factor.mT, float(torch.linalg.slogdet(wide).logabsdet)
    entropy = volume + 0.5 * loc.numel() * (1 + math.log(2 * math.pi))
    with torch.no_grad():
        many = getattr(density, "at_draws", None)
        values = torch.stack([density(u) for u in draws]) if many is None else many(draws)
        mean = float(values.mean())
    return mean + entropy if math.isfinite(mean) else -math.inf
