r"""
L-BFGS for densities that are not finite everywhere.

References

- `Nonsmooth optimization via quasi-Newton methods`, A. S. Lewis, M. L. Overton, Mathematical
  Programming 141, 2013. Algorithm 2.6 (a line search by bisection).
- `Numerical Optimization`, J. Nocedal, S. Wright, 2006. Algorithm 7.4.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["maximise"]

_HISTORY_SIZE = 50
_MAX_BISECTIONS = 40


def maximise(
    function: Callable[[Tensor], Tensor], start: Tensor, num_steps: int = 200
) -> tuple[Tensor, float]:
    """
    Maximises a function by L-BFGS from ``start``.

    A point where value or gradient is not finite counts as too far: the step is halved, so that the
    search never leaves the domain.

    :param function: from ``(m,)`` to a scalar.
    :param torch.Tensor start: shape ``(m,)``.
    :param int num_steps: most steps.
    :returns: the best point found and the gain over ``start``, 0 if there is nothing finite there.
    """
    u = start.detach().clone()
    value, gradient = _evaluate(function, u)
    first = value
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=_HISTORY_SIZE)
    for _ in range(num_steps):
        if not math.isfinite(value) or gradient.abs().max() <= 1e-9:
            break
        direction = _ascent(gradient, pairs)
        if not direction @ gradient > 0:  # rounding has spoilt the pairs
            pairs.clear()
            direction = _ascent(gradient, pairs)
        found = _line_search(function, u, value, gradient, direction)
        if found is None:
            break
        point, higher, slope = found
        step, change = point - u, gradient - slope
        if step @ change > 1e-10 * change.square().sum():
            pairs.append((step, change))
        gain = higher - value
        u, value, gradient = point, higher, slope
        if gain <= 1e-12 * (1 + abs(value)):
            break
    return u, value - first if math.isfinite(first) else 0.0


def _evaluate(function: Callable[[Tensor], Tensor], u: Tensor) -> tuple[float, Tensor]:
    """Value and gradient; the value is NaN if either is not finite."""
    with torch.enable_grad():
        point = u.detach().clone().requires_grad_(True)
        value = function(point)
        (gradient,) = torch.autograd.grad(value, point)
    return float(value.detach()) if torch.isfinite(gradient).all() else math.nan, gradient


def _ascent(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor]]) -> Tensor:
    """Multiplies the gradient by an estimate of the inverse curvature, in two loops."""
    if not pairs:
        return gradient * min(1.0, 1 / float(gradient.abs().sum()))
    direction, weights = gradient.clone(), []
    for step, change in reversed(pairs):
        weight = (step @ direction) / (step @ change)
        direction = direction - weight * change
        weights.append(weight)
    step, change = pairs[-1]
    direction = direction * ((step @ change) / change.square().sum())
    for (step, change), weight in zip(pairs, reversed(weights), strict=True):
        direction = direction + step * (weight - (change @ direction) / (step @ change))
    return direction


def _line_search(
    function: Callable[[Tensor], Tensor],
    u: Tensor,
    value: float,
    gradient: Tensor,
    direction: Tensor,
) -> tuple[Tensor, float, Tensor] | None:
    """A step with the weak Wolfe conditions, or the longest found that rises enough, or None."""
    slope = float(direction @ gradient)
    low, high, size = 0.0, math.inf, 1.0
    below, above = u, None  # the points at low and high
    risen = None
    for _ in range(_MAX_BISECTIONS):
        point = u + size * direction
        if torch.equal(point, below) or (above is not None and torch.equal(point, above)):
            break  # the dtype has no point between the two
        here, there = _evaluate(function, point)
        if not (math.isfinite(here) and here >= value + 1e-4 * size * slope):
            high, above = size, point
        else:
            risen = (point, here, there)
            if float(direction @ there) <= 0.9 * slope:
                return risen
            low, below = size, point
        size = 2 * low if math.isinf(high) else 0.5 * (low + high)
    return risen
