"""What has to be known of a distribution of noise that is not the default one."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor

__all__ = ["draw", "is_one_law", "is_standard_normal", "loses_gradients"]


def draw(base: Any, sample_shape: tuple[int, ...]) -> Tensor:
    """
    Draws noise, with gradients where the base distribution has them.

    :param base: a distribution of noise.
    :param tuple sample_shape: leading shape of the draws.
    :returns: draws that move with its parameters wherever they can.
    """
    shape = torch.Size(sample_shape)
    drawn: Tensor = base.rsample(shape) if base.has_rsample else base.sample(shape)
    return drawn


def loses_gradients(base: Any, noise: Tensor) -> bool:
    """
    Whether a distribution has learned parameters and draws that do not move with them.

    Gradients of everything that depends on the draws are then wrong.

    :param torch.Tensor noise: one of its draws.
    """
    return not base.has_rsample and base.log_prob(noise.detach()).requires_grad


def is_standard_normal(base: Any) -> bool:
    """Whether a base distribution is the default one, with constant parameters."""
    inner = base.base_dist if isinstance(base, dist.Independent) else base
    if type(inner) is not dist.Normal or inner.loc.requires_grad or inner.scale.requires_grad:
        return False
    return bool((inner.loc == 0).all() and (inner.scale == 1).all())


def is_one_law(base: Any) -> bool:
    """
    Whether all entries of a distribution's batch are known to be distributed alike.

    A plate leaves it so that has expanded one distribution; False where nobody can tell.
    """
    if base.batch_shape.numel() == 1:
        return True
    if isinstance(base, ExpandedDistribution):
        return is_one_law(base.base_dist)
    if isinstance(base, torch.distributions.Independent):
        rows = len(base.batch_shape)
        return _has_copies(base.base_dist, rows)
    return _has_copies(base, len(base.batch_shape))


def _has_copies(base: Any, rows: int) -> bool:
    """Whether every parameter is one value along the first ``rows`` dimensions of the batch."""
    if type(base) is not dist.Normal:
        return False
    return all(
        size == 1 or stride == 0
        for value in (base.loc, base.scale)
        for size, stride in zip(value.shape[:rows], value.stride()[:rows], strict=True)
    )
