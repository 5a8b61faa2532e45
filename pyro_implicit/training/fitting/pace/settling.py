r"""
The end of a run: from where parameters wander to the middle of it, and never above the start.

References

- `Acceleration of Stochastic Approximation by Averaging`, B. T. Polyak, A. B. Juditsky, SIAM,
  1992.
- `Stochastic Gradient Descent for Non-smooth Optimization`, O. Shamir, T. Zhang, ICML, 2013: means
  that forget the first steps, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count
from pyro_implicit.training.fitting.pace.whole_loss import WholeLoss
from pyro_implicit.training.fitting.parameters.parameter_copies import copied, set_to

__all__ = ["Settling"]

_Params = Mapping[str, Tensor]

_MAX_NUMBERS_TO_COPY = 5_000_000  # of all parameters: where there are more nothing is averaged
_STEPS_BETWEEN_VALUES = 5  # that are averaged: neighbours hardly differ
_POWER_OF_WEIGHTS = 3  # the mean weighs its k-th value by k to this power
_MIN_DRAWS_TO_COMPARE, _MIN_LOSSES_TO_COMPARE = 128, 8
_CERTAIN_STANDARD_ERRORS = 2.0  # of a mean difference of losses that is no chance
_CERTAIN_EXCESS_OF_SIGNS = 1.4  # beyond half, in roots of their number: 24 of 32, 8 of 8
_WANDERING_NATS_TO_COOL_FROM = 0.5  # by so much parameters that wander raise the loss there
# By which the mean has to be better than the parameters: the last steps still learn a banana.
_MIN_GAIN_OF_MEAN_IN_NATS = 0.25
# Parts of the rate that cooling begins with at the least: where the loss is level, and where the
# limit of steps is near. Chosen on a 2PL model (146 latents), a Poisson one (153), a horseshoe
# (122), varying slopes (42) and eight schools: at the full rate, the wandering that the mean has
# left behind comes back.
_MIN_RELATIVE_RATE_IF_LEVEL, _MIN_RELATIVE_RATE_AT_LIMIT = 0.1, 0.3
_MAX_NATS_ABOVE_START = 1.0  # of the mean of a level run: one that is higher begins anew, slower
_RATE_FACTOR_OF_SLOWING, _MAX_SLOWINGS = 0.25, 3


class Settling:
    """
    Averages parameters before the rate is cooled, and goes back to a start that was better.

    At a constant learning rate parameters fluctuate around the optimum: at 0.002, the loss of a
    generator of 150 latents is 12 nats above that of the Gaussian which it started as. Their
    running mean usually has a lower loss, so cooling begins there. Losses at the parameters, at
    their mean and at the start are compared by the same draws.

    :param loss: of the whole data; None where losses do not mean the same, or batches are seen.
    :param state: what :meth:`state` returned, to go on from.
    """

    def __init__(self, loss: WholeLoss | None, state: Mapping[str, Any] | None = None) -> None:
        self._loss = loss
        self._start: dict[str, Tensor] = {}
        self._mean = _Mean()
        #: the steps at which it began anew, at a lower rate
        self.slowings: list[int] = []
        #: the part of the rate that cooling begins with at the mean, while that is planned
        self.planned = 1.0
        #: whether the parameters of the start were brought back at the end
        self.is_start = False
        self._start_loss = math.nan
        if state is not None:
            self._load(state)

    def begin(self, params: _Params) -> None:
        """
        Copies the parameters that a run begins with, unless there is a copy.

        :param params: by name, before the first step.
        """
        if self._loss is None or self._start:
            return
        if sum(param.numel() for param in params.values()) > _MAX_NUMBERS_TO_COPY:
            self._loss = None
        else:
            self._start = copied(params)

    @property
    def is_possible(self) -> bool:
        """Whether there are losses to go by."""
        return self._loss is not None

    def wants(self, step: int) -> bool:
        """
        Whether the parameters after a step at the full rate belong into the mean.

        :param int step: the number of steps so far.
        """
        return self._loss is not None and step % _STEPS_BETWEEN_VALUES == 0

    @torch.no_grad()
    def add(self, step: int, params: _Params) -> None:
        """
        Takes parameters into the mean; the same if it is called twice at one step.

        :param int step: the number of steps so far.
        :param params: by name.
        """
        if step > self._mean.step:
            self._mean = self._mean.with_values(step, params)

    def forget(self) -> None:
        """Begins the mean anew: what came before was at another rate, or led astray."""
        self._mean = _Mean()

    @property
    def factor(self) -> float:
        """What the learning rate is multiplied by."""
        return _RATE_FACTOR_OF_SLOWING ** len(self.slowings)

    @property
    def may_slow(self) -> bool:
        """Whether the rate may be lowered once more."""
        return len(self.slowings) < _MAX_SLOWINGS

    def is_above_start(self, params: _Params) -> bool:
        """
        Whether the mean of a level run is clearly above the start, where the rate is too high.

        :param params: as they are now, by name.
        """
        if not self._is_known(params) or not self.may_slow:
            return False
        gap, error = _gap(self._at(params, self._start), self._at(params, self._mean.values))
        return gap + _CERTAIN_STANDARD_ERRORS * error < -_MAX_NATS_ABOVE_START

    def plan(self, params: _Params, is_level: bool) -> bool:
        """
        Finds the part of the rate at which the mean of the parameters is to be cooled from.

        :param params: as they are now, by name.
        :param bool is_level: whether the loss is level; else the limit of steps is near.
        :returns: whether the mean is better than the parameters are by a quarter of a nat.
        """
        if not self._is_known(params):
            return False
        gap, _ = _gap(self.losses(), self._at(params, self._mean.values))
        if not gap > _MIN_GAIN_OF_MEAN_IN_NATS:
            return False
        least = _MIN_RELATIVE_RATE_IF_LEVEL if is_level else _MIN_RELATIVE_RATE_AT_LIMIT
        self.planned = min(max(_WANDERING_NATS_TO_COOL_FROM / gap, least), 1.0)
        return True

    def is_worse_than_start(self, params: _Params) -> bool:
        """
        Whether a run has ended above its start, by more than what is left to chance.

        :param params: as they are now, by name.
        """
        if self._loss is None or not self._start or set(self._start) != set(params):
            return False
        losses, now = self._at(params, self._start), self.losses()
        self._start_loss = fmean(losses)
        if not all(map(math.isfinite, now)):
            return math.isfinite(self._start_loss)
        gap, error = _gap(losses, now)
        num_worse = sum(a > b for a, b in zip(now, losses, strict=True))
        are_certain = num_worse >= len(now) / 2 + _CERTAIN_EXCESS_OF_SIGNS * math.sqrt(len(now))
        return gap < 0 and (gap + _CERTAIN_STANDARD_ERRORS * error < 0 or are_certain)

    def to_mean(self, params: _Params) -> None:
        """
        Sets parameters to their mean.

        :param params: by name.
        """
        set_to(params, self._mean.values)

    def to_start(self, params: _Params) -> None:
        """
        Sets parameters to those of the start.

        :param params: by name.
        """
        set_to(params, self._start)

    def slow(self, step: int, params: _Params) -> None:
        """
        Begins anew at a quarter of the rate; the same if it is called twice at one step.

        :param int step: the number of steps so far.
        :param params: by name.
        """
        self.to_start(params)
        self.forget()
        if step not in self.slowings:
            self.slowings.append(step)

    def notes(self, is_kept: bool = True) -> list[str]:
        """
        What a user should know, in words.

        :param bool is_kept: whether the start, once brought back, was not replaced by parameters
            of a better validation score.
        """
        if not self.is_start:
            return []
        notes = f"no step brought the loss below that of the start ({self._start_loss:.5g})"
        more = "A lower lr and more steps may find better ones"
        if is_kept:
            what = "whose parameters were brought back: the guide is what it began as"
            return [f"{notes}, {what}. {more}"]
        return [
            f"{notes}; the parameters of the best validation score are back all the same. {more}"
        ]

    def state(self) -> dict[str, Any]:
        """Copies, as tensors and plain values."""
        return {
            "start": copied(self._start),
            "mean": (self._mean.step, self._mean.number, copied(self._mean.values)),
            "turns": list(self.slowings),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self._start = copied(state["start"])
        step, number, values = state["mean"]
        self._mean = _Mean(
            check_count("step", step, 0), check_count("number", number, 0), copied(values)
        )
        self.slowings = [check_count("a step of a slowing", step) for step in state["turns"]]

    def _is_known(self, params: _Params) -> bool:
        """Whether there is a mean, and a start, of all parameters, and losses to tell them by."""
        return (
            self._loss is not None
            and bool(params)
            and set(params) == set(self._start) == set(self._mean.values)
        )

    def losses(self) -> list[float]:
        """Losses of the whole data at parameters as they are; none where they are not known."""
        if self._loss is None:
            return []
        draws = int(self._loss.objective.num_particles)
        return self._loss.by_seed(max(_MIN_LOSSES_TO_COMPARE, -(-_MIN_DRAWS_TO_COMPARE // draws)))

    def _at(self, params: _Params, values: _Params) -> list[float]:
        """The losses at other values, which are taken back whatever happens."""
        now = copied(params)
        try:
            set_to(params, values)
            return self.losses()
        finally:
            set_to(params, now)


@dataclass(frozen=True)
class _Mean:
    """A mean that forgets, of every fifth step: the k-th value weighs about k**3."""

    step: int = 0
    number: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)

    def with_values(self, step: int, params: _Params) -> _Mean:
        weight = (_POWER_OF_WEIGHTS + 1) / (self.number + 1 + _POWER_OF_WEIGHTS)
        values = {
            name: self.values[name].to(param).lerp(param, weight)
            if name in self.values and param.is_floating_point()
            else param.detach().clone()
            for name, param in params.items()
        }
        return _Mean(step, self.number + 1, values)


def _gap(higher: Sequence[float], lower: Sequence[float]) -> tuple[float, float]:
    """By how much losses are above others of the same draws, and the standard error of that."""
    gaps = [a - b for a, b in zip(higher, lower, strict=True)]
    if not all(map(math.isfinite, gaps)):
        return math.nan, math.nan
    return fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))
