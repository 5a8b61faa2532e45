"""The learning rate: constant while the loss falls, then cooled."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_implicit.training.schedules import geometric_schedule

__all__ = ["LearningRate"]

_COOLING_FACTOR = 0.01  # the last rate over the first
# Cooling takes a third as many steps as came before it, and begins with the last third of all at
# the latest.
_COOLING_DIVISOR = 3


@dataclass
class LearningRate:
    """
    The rate of each step: ``lr`` until cooling begins, then down by equal ratios to a hundredth.

    At a constant rate parameters wander about the optimum, by more the higher it is; cooling takes
    a third as many steps as came before it, and brings them there.

    :param float lr: the first rate.
    :param int num_steps: limit of all steps; cooling begins early enough to end there.
    :param int begun: the step at which cooling began, None before.
    :param int length: the steps that it takes.
    :param float share: the part of the rate that cooling begins with.
    """

    lr: float
    num_steps: int
    begun: int | None = None
    length: int = 0
    share: float = 1.0

    def at(self, step: int) -> float:
        """The rate of a step, counting from 0."""
        if self.begun is None:
            return self.lr
        schedule = geometric_schedule(self.share * self.lr, _COOLING_FACTOR * self.lr, self.length)
        return schedule(step - self.begun)

    def is_due(self, step: int) -> bool:
        """Whether cooling has to begin at a step, to end by the limit."""
        return self.begun is None and step >= self.num_steps - self.num_steps // _COOLING_DIVISOR

    def cool(self, step: int, num_warm: int, share: float = 1.0) -> None:
        """
        Begins to cool, unless it has.

        :param int step: the next step.
        :param int num_warm: the number of steps at the full rate.
        :param float share: the part of the rate to begin with.
        """
        if self.begun is not None:
            return
        is_due = self.is_due(step)
        self.begun, self.share = step, share
        left = self.num_steps - step
        self.length = left if is_due else min(max(num_warm // _COOLING_DIVISOR, 100), left)

    def is_cold(self, step: int) -> bool:
        """Whether cooling is over before a step."""
        return self.begun is not None and step >= self.begun + self.length
