"""A few steps uphill, to see how good a place to start is."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["ascend"]

_ADAM_LEARNING_RATE = 0.01  # in the unconstrained space


def ascend(
    density: Callable[[Tensor], Tensor], start: Tensor, num_steps: int
) -> tuple[Tensor, float]:
    """
    Takes a few steps of Adam uphill.

    :param density: the log-density, NaN outside of its domain.
    :param torch.Tensor start: shape ``(m,)``.
    :param int num_steps: number of gradients.
    :returns: the best point that was met and the density there, minus infinity if it is finite
        nowhere.
    """
    point = start.detach().clone().requires_grad_(True)
    adam = torch.optim.Adam([point], lr=_ADAM_LEARNING_RATE)
    best, highest = start.detach().clone(), -math.inf
    for _ in range(num_steps):
        with torch.enable_grad():
            value = density(point)
            if not bool(torch.isfinite(value)):
                break
            (point.grad,) = torch.autograd.grad(value, point)
        if float(value.detach()) > highest:
            best, highest = point.detach().clone(), float(value.detach())
        if not bool(point.grad.isfinite().all()):
            break
        point.grad.neg_()
        adam.step()
    return best, highest
