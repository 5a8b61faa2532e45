"""How a run goes on: at the full rate, cooling, from other parameters, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from pyro_implicit.training.fitting.between_steps import Due
from pyro_implicit.training.fitting.pace.learning_rate import LearningRate
from pyro_implicit.training.fitting.pace.norm_clipped_adam import NormClippedAdam
from pyro_implicit.training.fitting.pace.retreat import Retreat
from pyro_implicit.training.fitting.pace.settling import Settling
from pyro_implicit.training.fitting.pace.stall import Slope, slope_of
from pyro_implicit.training.fitting.pace.whole_loss import WholeLoss
from pyro_implicit.training.fitting.parameters.running_statistics import RunningStatistics

__all__ = ["Course"]

MIN_STEPS_TO_JUDGE = 400  # before it is asked whether the objective still rises
#: Steps at the full rate until it is asked again, over those until it was asked last: who asks at
#: every step is fooled by luck at some.
_LOOK_STEPS_RATIO = 1.1


class Course:
    """
    The course of one run, from the losses of its steps.

    What sets all parameters at once is only planned when it is asked what to do, and done by
    :meth:`move`, so that a run which is interrupted in between can do it again.

    :param LearningRate rate: that of each step.
    :param bool judges_losses: whether a loss far above its best means that something is wrong.
    :param whole: the loss of all rows where steps see batches, by which to judge whether the
        objective is level; or None.
    :param comparable: the loss by the same draws, where that is known; or None.
    :param num_latents: how many the posterior has, once the guide is built.
    :param times: the factor of the rate for a parameter; 1 for all by default.
    """

    def __init__(
        self,
        rate: LearningRate,
        judges_losses: bool,
        whole: WholeLoss | None,
        comparable: WholeLoss | None,
        num_latents: Callable[[], int],
        times: Callable[[Tensor], float] | None,
    ) -> None:
        self.rate, self.whole, self._comparable = rate, whole, comparable
        self._num_latents, self._judges, self._times = num_latents, judges_losses, times
        #: what moves the parameters
        self.adam = NormClippedAdam(times=times)
        #: what else they need, to be what they were
        self.statistics = RunningStatistics()
        #: the way back to good parameters
        self.retreat = Retreat(judges_losses)
        #: the way to the middle of where parameters wander
        self.settling = Settling(comparable)
        #: whether the loss at the full rate was found to be level
        self.is_flat = False
        #: the step at which it last was, where the run went on all the same
        self.level_at: int | None = None
        self._warm_from = 0  # the step at which the rate was last set to its full height
        self._ask_at = MIN_STEPS_TO_JUDGE  # steps at the full rate

    @property
    def kept(self) -> dict[str, Tensor]:
        """All parameters so far, and running statistics, by name: what is copied and set."""
        return self.adam.params | self.statistics.values

    def begin(self, step: int, params: Mapping[str, Tensor]) -> None:
        """
        Takes notice of parameters that a step is about to move.

        :param int step: the number of steps so far.
        :param params: of this step, unconstrained, by name.
        """
        self.adam.take(params)
        before = self.adam.params | self.statistics.before
        self.retreat.begin(step, before)
        self.settling.begin(before)

    def rate_at(self, step: int) -> float:
        """
        The rate of a step.

        :param int step: counted from 0.
        """
        return self.retreat.factor * self.settling.factor * self.rate.at(step)

    def after(self, losses: Sequence[float]) -> list[Due]:
        """
        What a step that was taken brings with it.

        :param losses: of all steps so far.
        :returns: what is due.
        """
        due = [Due.ADD_TO_MEAN] * (self.rate.begun is None and self.settling.wants(len(losses)))
        return [Due.RETREAT] * self.retreat.look(losses, self.kept) + due

    # ---- what to do next

    def next(
        self, losses: Sequence[float], params: Callable[[], Mapping[str, Tensor]]
    ) -> tuple[str | None, list[Due]]:
        """
        Whether to stop now.

        :param losses: of all steps so far.
        :param params: gives all parameters, also before the first step of a run that goes on.
        :returns: the reason to stop, or None, and what is due before that; if there is something,
            ask again.
        """
        due: list[Due] = []
        step = len(losses)
        num_warm = step - self._warm_from
        if self.rate.begun is None and num_warm >= self._ask_at:
            is_level = self.whole is None or self.whole.look(step)
            slope = self.slope(losses[self._warm_from :])
            self.is_flat = slope is not None and slope.is_flat and is_level
            if self.is_flat:
                due = self._level(step, params())
            self._ask_at = int(_LOOK_STEPS_RATIO * num_warm)  # last: who is interrupted asks anew
        if self.rate.is_due(step) and step < self.rate.num_steps and not due:
            due = self._cool(step, params(), is_level=False)
        if due:
            return None, due
        is_left = step < self.rate.num_steps
        if self.rate.is_cold(step) and self.is_flat:
            return "converged", self._last_look(step, params(), may_slow=is_left)
        if step >= self.rate.num_steps:
            return "limit", self._last_look(step, params(), may_slow=False)
        return None, []

    def slope(self, losses: Sequence[float]) -> Slope | None:
        """
        How much a series has gained lately, and whether that matters for such a posterior.

        :param losses: of successive steps.
        :returns: None of a series that is too short to tell.
        """
        return slope_of(losses, self._num_latents()) if len(losses) >= MIN_STEPS_TO_JUDGE else None

    def at_full_rate(self, losses: Sequence[float]) -> Sequence[float]:
        """
        The losses of the last steps at the full rate.

        :param losses: of all steps so far.
        """
        return losses[self._warm_from : self.rate.begun]

    def _level(self, step: int, params: Mapping[str, Tensor]) -> list[Due]:
        """Where the loss is level: cools, or goes on slower from the start if that was better."""
        if self.settling.is_above_start(params):
            return [Due.RESTART_SLOWER]
        return self._cool(step, params, is_level=True)

    def _cool(self, step: int, params: Mapping[str, Tensor], is_level: bool) -> list[Due]:
        """From the mean of the parameters, where that is better."""
        if self.settling.plan(params, is_level):
            return [Due.GO_TO_MEAN]
        self.rate.cool(step, step - self._warm_from)
        return []

    def _last_look(self, step: int, params: Mapping[str, Tensor], may_slow: bool) -> list[Due]:
        """Goes on slower where a run has ended above its start, or brings that back."""
        is_new = not self.settling.is_start and step >= MIN_STEPS_TO_JUDGE
        if is_new and self.settling.is_worse_than_start(params):
            is_slow = may_slow and self.settling.may_slow
            return [Due.RESTART_SLOWER] if is_slow else [Due.GO_TO_START, Due.EVALUATE_START_SCORE]
        return []

    # ---- what sets all parameters

    def move(self, where: Due, step: int) -> None:
        """
        Sets parameters to others that are known; the same if it is called twice.

        :param Due where: one that moves.
        :param int step: the number of steps so far.
        """
        params = self.kept
        if where is Due.RETREAT:  # with half the rate and an optimiser that knows nothing
            self.retreat.go_back(step, params)
            self.adam.forget()
            if self.rate.begun is None:
                self._begin_anew(step)
        elif where is Due.GO_TO_MEAN:
            self.settling.to_mean(params)
            self.adam.stand_still()
            self.rate.cool(step, step - self._warm_from, self.settling.planned)
        elif where is Due.GO_TO_START:
            self.settling.to_start(params)
            self.settling.is_start = True
        else:
            self.settling.slow(step, params)
            self.adam.forget()
            self.rate.begun = None
            self._begin_anew(step)

    def go_on(self, step: int) -> None:
        """
        Takes up the full rate again, for as many steps as there were before it is asked.

        :param int step: the number of steps so far.
        """
        self._warm_up(step)
        self._ask_at, self.level_at = max(MIN_STEPS_TO_JUDGE, step), step

    def _warm_up(self, step: int) -> None:
        self.rate.begun, self.rate.length, self.rate.share = None, 0, 1.0
        self._begin_anew(step)

    def _begin_anew(self, step: int) -> None:
        """Counts steps at the full rate from here."""
        self._warm_from, self.is_flat, self._ask_at = step, False, MIN_STEPS_TO_JUDGE
        self.settling.forget()
        if self.whole is not None:
            self.whole.values = []

    # ---- what remains

    def state(self) -> dict[str, Any]:
        """Copies, as tensors and plain values."""
        return {
            "adam": self.adam.state(),
            "warm_from": self._warm_from,
            "cooling": (self.rate.begun, self.rate.length, self.rate.share),
            "is_flat": self.is_flat,
            "level_at": self.level_at,
            "ask_at": self._ask_at,
            "retreat": self.retreat.state(),
            "settling": self.settling.state(),
            "whole": [] if self.whole is None else list(self.whole.values),
        }

    def load(self, state: Mapping[str, Any], step: int, is_over: bool) -> None:
        """
        Goes on from a state.

        :param state: what :meth:`state` returned, and maybe more.
        :param int step: the number of steps so far.
        :param bool is_over: whether that run had ended, so that another stage begins.
        :raises KeyError, TypeError, ValueError: if it is no such state.
        """
        self.adam = NormClippedAdam(state["adam"], self._times)
        self._warm_from, self.is_flat = state["warm_from"], bool(state["is_flat"])
        self.rate.begun, self.rate.length, self.rate.share = state["cooling"]
        self._ask_at = int(state["ask_at"])
        self.retreat = Retreat(self._judges, state["retreat"])
        if is_over:  # its copies and losses may be of other parameters, or of other data
            self.retreat = Retreat(self._judges)
            self.retreat.begin_at(step)
            self._warm_up(step)
            return
        self.level_at = state.get("level_at")
        self.settling = Settling(self._comparable, state["settling"])
        if self.whole is not None:
            self.whole.values = list(state["whole"])
