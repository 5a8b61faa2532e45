"""The training loop itself, and what it keeps of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO
from torch import Tensor

from pyro_implicit._random import RandomStream, plain_state, read_random_state, state_from_plain
from pyro_implicit._random import write_random_state as _write
from pyro_implicit.exceptions import NonFiniteError, StateError
from pyro_implicit.generators.base import Generator
from pyro_implicit.handlers.explained_errors import refuses_nan
from pyro_implicit.handlers.latent_rows import ParametersAtRows
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.training.fitting.all_rows import Call
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.first_steps import FirstSteps
from pyro_implicit.training.fitting.learning_rate import LearningRate
from pyro_implicit.training.fitting.norm_clipped_adam import NormClippedAdam
from pyro_implicit.training.fitting.retreat import Retreat, is_comparable
from pyro_implicit.training.fitting.seen_parameters import SeenParameters
from pyro_implicit.training.fitting.settling import Settling
from pyro_implicit.training.fitting.stall import Slope, slope_of
from pyro_implicit.training.fitting.told import (
    told_limit,
    told_other_run,
    told_resolution,
    told_rise,
)
from pyro_implicit.training.fitting.validation import EVERY, Validation
from pyro_implicit.training.fitting.whole_loss import WholeLoss
from pyro_implicit.training.recorded import RecordedObjective

__all__ = ["Run"]

_FEWEST = 400  # steps before the objective is asked whether it still rises
_ASK_AGAIN = 1.1  # times as many steps later: who asks at every step is fooled by luck at some
_TERMS_EVERY = 50
_MOST_SKIPPED = 20  # steps in a row without a finite loss
_WORTH_RECORDING = 500  # steps that are left: to record one takes as long as some hundred
_ASTRAY = 10  # and so many, if there are parameters to go back to
_MOVES = ("retreat", "mean", "slower", "start")  # what sets all parameters


class Run:
    """
    One training of model and guide.

    :param model: the model.
    :param guide: the guide.
    :param objective: what is minimised.
    :param Arguments arguments: those of each step.
    :param LearningRate rate: that of each step.
    :param validation: scores now and then, or None.
    :param rows: where steps see batches, all rows, by which to judge whether the objective is
        level; or None.
    :param times: the factor of the rate for a parameter; 1 for all by default.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        objective: Any,
        arguments: Arguments,
        rate: LearningRate,
        validation: Validation | None,
        rows: Call | None = None,
        times: Callable[[Tensor], float] | None = None,
    ) -> None:
        self._times = times
        self.model, self.guide, self.objective = model, guide, objective
        self.arguments, self.rate, self.validation = arguments, rate, validation
        self._called = _at_rows(guide, objective)
        self._whole: WholeLoss | None = None
        if rows is not None and is_comparable(objective):
            self._whole = WholeLoss(model, self._called, objective, rows)
        self._stepper: Any = None  # the objective, or what records its steps
        self.adam = NormClippedAdam(times=times)
        self.history: list[float] = []
        self.rates: list[float] = []
        self.terms: list[dict[str, float]] = []
        self.warm_from = 0  # the step at which the rate was last set to its full height
        self.ask_at = _FEWEST  # steps at the full rate
        self.is_flat = False
        self.skipped: list[str] = []
        self.num_skipped_now = 0  # in a row
        self.seen = SeenParameters()
        self.retreat = Retreat(is_comparable(objective))
        self.settling = Settling(self._comparable_loss())
        self.due: list[str] = []  # what the last step brings with it, and was not done yet
        self._last: tuple[Any, Any] | None = None  # arguments of the last step
        self._pending: tuple[int, float, float] | None = None  # a step under way, loss and rate
        self._random = read_random_state()  # where to go back to if interrupted
        #: what is told once the first steps were taken
        self.first_steps = FirstSteps(model, guide, objective, arguments, validation)
        #: what was found lacking once it had ended: at which step, peaks and deviations
        self.looks: tuple[int, list[str], list[str]] | None = None
        self._num_earlier = 0  # steps of the run that is resumed
        self._earlier_scores: Any = None  # of the run that is resumed, without validation in this

    # ---- the loop

    def train(self, bar: Any) -> str:
        """
        Takes steps until there is a reason to stop.

        :param bar: a progress bar.
        :returns: the reason.
        :raises NonFiniteError: after too many steps in a row without a finite loss.
        """
        try:
            while True:
                self._random = read_random_state()
                self._follow_up()
                self._tell(bar)
                reason = self._reason()
                if self.due:
                    continue
                if reason is not None:
                    self._score(len(self.history))
                    return reason
                self._step()
        except KeyboardInterrupt:
            self._settle()
            return "interrupted"

    def _settle(self) -> None:
        """Makes of a step that was broken off one that was taken, or one to be taken anew."""
        self.adam.clear()
        while self.due and self.due[0] in _MOVES:  # half of the parameters may be those of before
            self._move(self.due.pop(0))
        if self._pending is not None and self.adam.has_stepped:
            self._commit(*self._pending)
        else:
            _write(self._random)

    def _reason(self) -> str | None:
        """Why to stop now, or None; or what is due before it is asked again."""
        if self.validation is not None and self.validation.is_over:
            return "validation"
        step = len(self.history)
        num_warm = step - self.warm_from
        if self.rate.begun is None and num_warm >= self.ask_at:
            is_level = self._whole is None or self._whole.look(step)
            self.is_flat = self._slope(self.history[self.warm_from :]).is_flat and is_level
            if self.is_flat:
                self._level(step)
            self.ask_at = int(_ASK_AGAIN * num_warm)  # last: who is interrupted asks anew
        if self.rate.is_due(step) and step < self.rate.num_steps and not self.due:
            self._cool(step, is_level=False)
        if self.rate.is_cold(step) and self.is_flat:
            return self._last_look(step, "converged")
        return self._last_look(step, "limit") if step >= self.rate.num_steps else None

    def _slope(self, losses: Sequence[float]) -> Slope:
        """How much a series has gained lately, and whether that matters for such a posterior."""
        parts = self.guide.modules() if isinstance(self.guide, torch.nn.Module) else ()
        generators = [part for part in parts if isinstance(part, Generator)]
        return slope_of(losses, sum(part.output_dim for part in generators))

    def _level(self, step: int) -> None:
        """Where the loss is level: cools, or goes on slower from the start if that was better."""
        if self.settling.is_above_start(self._met()):
            self.due = ["slower"]
        else:
            self._cool(step, is_level=True)

    def _cool(self, step: int, is_level: bool) -> None:
        """From the mean of the parameters, where that is better."""
        if self.settling.plan(self._met(), is_level):
            self.due = ["mean"]
        else:
            self.rate.cool(step, step - self.warm_from)

    def _last_look(self, step: int, reason: str) -> str:
        """Goes on slower where a run has ended above its start, or brings that back."""
        is_new = not self.settling.is_start and step >= _FEWEST
        if is_new and self.settling.is_worse_than_start(self._met()):
            may = reason == "converged" and self.settling.may_slow
            self.due = ["slower"] if may else ["start", "score start"]
        return reason

    def _move(self, where: str) -> None:
        """Sets parameters to others that are known; the same if it is called twice."""
        step, params = len(self.history), self.adam.params
        if where == "retreat":
            self._go_back()
        elif where == "mean":
            self.settling.to_mean(params)
            self.adam.stand_still()
            self.rate.cool(step, step - self.warm_from, self.settling.planned)
        elif where == "start":
            self.settling.to_start(params)
            self.settling.is_start = True
        else:
            self.settling.slow(step, params)
            self.adam.forget()
            self.rate.begun = None
            self._begin_anew()

    @property
    def may_go_on(self) -> bool:
        """Whether a run that has ended may take up the full rate again."""
        is_left = len(self.history) < self.rate.num_steps
        return is_left and self.validation is None and not self.settling.is_start

    def go_on(self) -> None:
        """Takes up the full rate again, for as many steps as there were before it is asked."""
        self.rate.begun, self.rate.length, self.rate.share = None, 0, 1.0
        self._begin_anew()
        self.ask_at = max(_FEWEST, len(self.history))

    def _begin_anew(self) -> None:
        """Counts steps at the full rate from here."""
        self.warm_from, self.is_flat, self.ask_at = len(self.history), False, _FEWEST
        self.settling.forget()
        if self._whole is not None:
            self._whole.values = []

    @torch.no_grad()
    def _met(self) -> dict[str, Tensor]:
        """All parameters, also where a run that goes on has taken no step yet."""
        if self.history and not self.adam.params and self.settling.is_possible:
            args, kwargs = self.last_call
            with poutine.trace(param_only=True) as capture, RandomStream(0):
                self.objective.loss(self.model, self._called, *args, **kwargs)
            self.seen.add(_params(capture))
            self.adam.take(_params(capture))
        return self.adam.params

    def _comparable_loss(self) -> WholeLoss | None:
        """The loss by the same draws, where it means the same and all data are known."""
        if self._whole is not None or not is_comparable(self.objective):
            return self._whole
        if self.arguments.batches is not None:
            return None
        data = self.arguments.args, self.arguments.kwargs
        return WholeLoss(self.model, self._called, self.objective, data)

    def _step(self) -> None:
        """Takes one step, or skips it if the loss or a gradient is not finite."""
        self._last = self.arguments.next()
        args, kwargs = self._last
        self.first_steps.before(args)
        step = len(self.history)
        rate = self.retreat.factor * self.settling.factor * self.rate.at(step)
        if self._stepper is None:
            self._stepper = _stepper_for(self.objective, self.rate.num_steps - step)
        self.adam.has_stepped = False
        capture, cause = poutine.trace(param_only=True), None
        try:
            with self.first_steps.watching(), capture:
                loss = float(
                    self._stepper.loss_and_grads(self.model, self._called, *args, **kwargs)
                )
            why = f"the loss was {loss:.6g}, or a gradient was not finite"
            self._pending = step, loss, rate
            is_taken = self._descend(_params(capture), loss, rate)
        except (NonFiniteError, ValueError) as error:
            if not isinstance(error, NonFiniteError) and not refuses_nan(error):
                raise
            is_taken, why, cause = False, str(error), error
        finally:  # whatever came: no gradient is added to those of the next step
            for param in _params(capture).values():
                param.grad = None
        if is_taken:
            self._commit(step, loss, rate)
            self.first_steps.after(len(self.history), self._last, _params(capture))
        else:
            self._skip(why, cause)

    def _descend(self, params: dict[str, Tensor], loss: float, rate: float) -> bool:
        """Whether parameters were moved along their gradients, which are finite then."""
        self.seen.add(params)
        self.adam.take(params)
        self.retreat.begin(len(self.history), self.adam.params)
        self.settling.begin(self.adam.params)
        return math.isfinite(loss) and self.adam.step(params, rate)

    def _commit(self, step: int, loss: float, rate: float) -> None:
        """Counts a step that was taken; the same if it is called twice."""
        self.history[step:], self.rates[step:] = [loss], [rate]
        self.num_skipped_now = 0
        scored = self.validation is not None and (step + 1) % EVERY == 0
        self.due = ["terms"] * ((step + 1) % _TERMS_EVERY == 0) + ["score"] * scored
        if self.rate.begun is None and self.settling.wants(step + 1):
            self.due = ["add", *self.due]
        if self.retreat.look(self.history, self.adam.params):
            self.due = ["retreat", *self.due]
        self._pending = None

    def _follow_up(self) -> None:
        """What the last step brings with it: terms of the objective, and a score."""
        while self.due:
            if self.due[0] in _MOVES:
                self._move(self.due[0])
            elif self.due[0] == "add":
                self.settling.add(len(self.history), self.adam.params)
            elif self.due[0] == "terms":
                self._evaluate_terms()
            elif self.due[0] == "score start":
                self._score(0)
            else:
                self._score(len(self.history))
            self._random, self.due = read_random_state(), self.due[1:]

    def _skip(self, why: str, error: Exception | None = None) -> None:
        self.adam.clear()
        self.skipped.append(why)
        self.num_skipped_now += 1
        if self.num_skipped_now >= _ASTRAY and self.retreat.is_possible(len(self.history)):
            self.due = ["retreat"]
        elif self.num_skipped_now >= _MOST_SKIPPED:
            raise NonFiniteError(
                f"{_MOST_SKIPPED} steps in a row had no finite loss, after {len(self.history)} "
                f"that had; the last one: {why}"
            ) from error

    def _go_back(self) -> None:
        """To parameters that were good, with half the rate and an optimiser that knows nothing."""
        step = len(self.history)
        self.retreat.go_back(step, self.adam.params)
        self.adam.forget()
        self.num_skipped_now = 0
        if self.rate.begun is None:
            self._begin_anew()

    @torch.no_grad()
    def _evaluate_terms(self) -> None:
        evaluate = getattr(self.objective, "terms", None)
        if evaluate is None:  # an objective of Pyro
            return
        args, kwargs = self.last_call
        try:
            terms = evaluate(self.model, self.guide, *args, **kwargs)
        except NonFiniteError:  # a bad draw: as good as a skipped step
            return
        step = float(len(self.history))
        known = [one for one in self.terms if one["step"] != step]
        self.terms = [*known, {"step": step} | {name: float(v) for name, v in terms.items()}]

    def _score(self, step: int) -> None:
        """Takes the score of the parameters as they are, of this step, unless it is known."""
        if self.validation is not None:
            self.validation(step)

    def losses_now(self) -> list[float]:
        """Losses of parameters as they are, where all data are known and losses mean the same."""
        return self.settling.losses()

    @property
    def is_replaced(self) -> bool:
        """Whether parameters were brought back at the end, of which the last losses are not."""
        return self.settling.is_start or self.validation is not None

    def _tell(self, bar: Any) -> None:
        step = len(self.history)
        bar.update(step - bar.n)
        if step and step % 10 == 0:
            shown = {"loss": f"{sum(self.history[-50:]) / len(self.history[-50:]):.4g}"}
            if self.terms:
                last = self.terms[-1]
                shown |= {name: f"{last[name]:.4g}" for name in last if name != "step"}
            bar.set_postfix(shown, refresh=False)

    # ---- what remains

    @property
    def last_call(self) -> tuple[Any, Any]:
        """Positional and keyword arguments of the last step, or of the first if none was taken."""
        return self._last or self.arguments.peek()

    def told(self, reason: str) -> list[str]:
        """What a user should know about a run that ended for this reason, in words."""
        other = told_other_run(self.history, self._num_earlier)
        told = list(other)
        if self.skipped:
            told.append(
                f"{len(self.skipped)} steps were skipped, as the loss or its gradient was not "
                f"finite; the last one: {self.skipped[-1]}"
            )
        kept = self.validation is None or self.validation.is_start_best
        told += self.retreat.told() + self.settling.told(kept)
        if getattr(self._stepper, "has_changed", False):
            told.append(
                "the model changed between steps from outside, and up to a hundred steps went by "
                "what it was before: keep what changes in the model, the guide or their arguments"
            )
        scores = list(self.validation.scores.values()) if self.validation is not None else []
        num_bad = sum(not math.isfinite(score) for score in scores)
        if num_bad:
            told.append(
                f"{num_bad} of {len(scores)} validation scores were NaN or infinite, which are "
                "never the best: look at what validation computes"
            )
        slope = self._slope(self.history) if len(self.history) >= _FEWEST else None
        if slope is not None and slope.is_rising:
            told.append(
                f"it has diverged: the loss of the last quarter of the steps is {-slope.gain:.4g} "
                "above that of the quarter before; try a lower lr"
            )
        elif self._is_one_series(reason) and not other:
            told += told_rise(self.history) if is_comparable(self.objective) else []
        if reason == "converged" and self.first_steps.is_cut and self._whole is None:
            told += told_resolution(slope)
        elif reason == "limit" and not self.is_flat and not (slope and slope.is_rising):
            warm = self.history[self.warm_from : self.rate.begun]
            told.append(
                told_limit(self.rate.num_steps, self._slope(warm) if len(warm) >= _FEWEST else None)
            )
        return told

    def _is_one_series(self, reason: str) -> bool:
        """Whether first and last losses are of the same data, and of what the guide is now."""
        is_whole = self.arguments.num_batches <= 1 and not self.settling.is_start
        return reason in ("converged", "limit") and is_whole

    def state(self, reason: str) -> dict[str, Any]:
        """All that another run needs to go on from here, as tensors and plain values."""
        return {
            "reason": reason,
            "adam": self.adam.state(),
            "random": plain_state(read_random_state()),
            "warm_from": self.warm_from,
            "cooling": (self.rate.begun, self.rate.length, self.rate.share),
            "is_flat": self.is_flat,
            "ask_at": self.ask_at,
            "skipped": list(self.skipped),
            "num_skipped_now": self.num_skipped_now,
            "params": self.seen.state(),
            "retreat": self.retreat.state(),
            "settling": self.settling.state(),
            "due": list(self.due),
            "whole": [] if self._whole is None else list(self._whole.values),
            "validation": self.validation.state() if self.validation else self._earlier_scores,
            "is_replaced": reason != "interrupted" and self.is_replaced,
        }

    def resume(self, result: Any) -> None:
        """
        Goes on from a result.

        An interrupted run goes on as if nothing had happened; one that had ended begins a new
        stage at the full rate.

        :param FitResult result: of an earlier run.
        :raises StateError: if its state is not one of ours; at the next step, if it has other
            parameters.
        """
        state = result.state
        try:
            is_over = state["reason"] != "interrupted"
            self.adam = NormClippedAdam(state["adam"], self._times)
            self.warm_from, self.is_flat = state["warm_from"], state["is_flat"]
            self.rate.begun, self.rate.length, self.rate.share = state["cooling"]
            self.ask_at = int(state["ask_at"])
            self.skipped = list(state["skipped"])
            self.num_skipped_now = 0 if is_over else int(state["num_skipped_now"])
            random_state = state_from_plain(state["random"])
            self.seen = SeenParameters(state["params"])
            self.due = [] if is_over else list(state["due"])
            if self._whole is not None:
                self._whole.values = [] if is_over else list(state["whole"])
            is_replaced = bool(state.get("is_replaced", False))
            self.retreat = Retreat(is_comparable(self.objective), state["retreat"])
            if not is_over:
                self.settling = Settling(self._comparable_loss(), state["settling"])
            self._earlier_scores = state["validation"]
            if self.validation is not None and self._earlier_scores is not None:
                self.validation.load(self._earlier_scores, is_over)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"resume has no state to go on from ({error!r}); expected a result of fit."
            ) from error
        self.history, self.rates = list(result.history), list(result.rates)
        if is_replaced:  # what losses and copies are of, the guide is not any more
            self.retreat.begin_anew(len(self.history))
        self._num_earlier = 0 if is_replaced else len(self.history)
        self.terms = [dict(one) for one in result.terms]
        if is_over:
            self.warm_from, self.is_flat, self.ask_at = len(self.history), False, _FEWEST
            self.rate.begun, self.rate.length, self.rate.share = None, 0, 1.0
        _write(random_state)
        self._random = random_state


def _at_rows(guide: Any, objective: Any) -> Any:
    """The guide, whose parameters of rows are to follow these under an objective of Pyro's too."""
    is_theirs = isinstance(objective, ELBO) and not isinstance(objective, ImplicitELBO)
    return ParametersAtRows()(guide) if is_theirs else guide


def _stepper_for(objective: Any, num_steps: int) -> Any:
    """What takes the steps: recorded ones, where so many are worth it."""
    if num_steps < _WORTH_RECORDING or type(objective) not in (LinearisedELBO, LanczosELBO):
        return objective
    if not objective.vectorize_particles:
        return objective
    return RecordedObjective(objective, hints=False)


def _params(capture: Any) -> dict[str, Tensor]:
    """The unconstrained parameters of a step, by name."""
    nodes = capture.trace.nodes
    return {name: nodes[name]["value"].unconstrained() for name in capture.trace.param_nodes}
