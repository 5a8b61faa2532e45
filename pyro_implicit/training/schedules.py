"""Schedules: plain functions from a step to a value."""

from __future__ import annotations

from collections.abc import Callable

from pyro_implicit._checks import check_count, check_number

__all__ = ["geometric_schedule", "linear_schedule"]


class _Linear:
    """A class, not a closure, so that what holds it can be pickled."""

    def __init__(self, start: float, end: float, num_steps: int) -> None:
        self.start, self.end, self.num_steps = start, end, num_steps

    def __call__(self, step: int) -> float:
        share = min(max(step / self.num_steps, 0.0), 1.0)
        return self.end if share == 1.0 else self._between(share)

    def _between(self, share: float) -> float:
        return self.start + share * (self.end - self.start)


class _Geometric(_Linear):
    def _between(self, share: float) -> float:
        value: float = self.start * (self.end / self.start) ** share
        return value


def linear_schedule(start: float, end: float, num_steps: int) -> Callable[[int], float]:
    """
    Goes from ``start`` at step 0 in a straight line to ``end`` at ``num_steps``.

    It stays at ``end`` from then on; for the weight of the KL term, say.

    :param float start: a finite number.
    :param float end: a finite number.
    :param int num_steps: at least 1.
    :returns: a function of the step.
    :raises ArgumentError: for values outside of these.
    """
    start, end = check_number("start", start), check_number("end", end)
    return _Linear(start, end, check_count("num_steps", num_steps))


def geometric_schedule(start: float, end: float, num_steps: int) -> Callable[[int], float]:
    """
    Goes from ``start`` to ``end`` by equal ratios: halfway lies the geometric mean.

    :param float start: a positive number.
    :param float end: a positive number.
    :param int num_steps: at least 1.
    :returns: a function of the step.
    :raises ArgumentError: for values outside of these.
    """
    start, end = check_number("start", start, above=0), check_number("end", end, above=0)
    return _Geometric(start, end, check_count("num_steps", num_steps))
