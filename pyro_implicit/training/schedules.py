"""Schedules: plain functions from a step to a value."""

from __future__ import annotations

import math
from collections.abc import Callable

from pyro_implicit.exceptions import ArgumentError

__all__ = ["geometric_schedule", "linear_schedule"]


def linear_schedule(start: float, end: float, num_steps: int) -> Callable[[int], float]:
    """
    From ``start`` at step 0 in a straight line to ``end`` at ``num_steps``, and ``end`` from then
    on; for the weight of the KL term, say.

    :param float start: a finite number.
    :param float end: a finite number.
    :param int num_steps: at least 1.
    :returns: a function of the step.
    :raises ArgumentError: for values outside of these.
    """
    _check(start, end, num_steps, least=-math.inf)

    def value(step: int) -> float:
        share = min(max(step / num_steps, 0.0), 1.0)
        return end if share == 1.0 else start + share * (end - start)

    return value


def geometric_schedule(start: float, end: float, num_steps: int) -> Callable[[int], float]:
    """
    The same by equal ratios, for scales: halfway lies the geometric mean.

    :param float start: a positive number.
    :param float end: a positive number.
    :param int num_steps: at least 1.
    :returns: a function of the step.
    :raises ArgumentError: for values outside of these.
    """
    _check(start, end, num_steps, least=0.0)

    def value(step: int) -> float:
        share = min(max(step / num_steps, 0.0), 1.0)
        return end if share == 1.0 else start * (end / start) ** share

    return value


def _check(start: float, end: float, num_steps: int, least: float) -> None:
    for name, number in (("start", start), ("end", end)):
        if not least < number < math.inf:
            kind = "positive" if least == 0 else "finite"
            raise ArgumentError(f"{name}={number!r}; expected a {kind} number.")
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1:
        raise ArgumentError(f"num_steps={num_steps!r}; expected an integer >= 1.")
