"""The training loop itself, and what it keeps of each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit._params import unconstrained
from pyro_implicit._random import RandomStream, plain_state, read_random_state, state_from_plain
from pyro_implicit._random import write_random_state as _write
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, PerformanceHint, StateError
from pyro_implicit.generators.base import Generator
from pyro_implicit.handlers.errors.value_errors import refuses_nan
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.networks.still_statistics import still_statistics
from pyro_implicit.handlers.rows.latent_rows import ParametersAtRows
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.training.fitting.all_rows import Call
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.between_steps import Due
from pyro_implicit.training.fitting.checks.first_steps import FirstSteps
from pyro_implicit.training.fitting.checks.loss_warnings import (
    note_of_limit,
    note_of_other_run,
    note_of_resolution,
    note_of_rise,
)
from pyro_implicit.training.fitting.checks.plate_sizes import is_pyros
from pyro_implicit.training.fitting.pace.course import Course
from pyro_implicit.training.fitting.pace.learning_rate import LearningRate
from pyro_implicit.training.fitting.pace.retreat import is_comparable
from pyro_implicit.training.fitting.pace.stall import Slope
from pyro_implicit.training.fitting.pace.whole_loss import WholeLoss
from pyro_implicit.training.fitting.parameters.seen_parameters import SeenParameters
from pyro_implicit.training.fitting.validation import STEPS_BETWEEN_SCORES, Validation
from pyro_implicit.training.recorded import RecordedObjective

__all__ = ["Run"]

_STEPS_BETWEEN_TERMS = 50
_MAX_SKIPPED = 20  # steps in a row without a finite loss, before the run gives up
_MAX_SKIPPED_BEFORE_RETREAT = 10  # where there are good parameters to go back to
_MIN_STEPS_TO_RECORD = 500  # that are left: to record one takes as long as some hundred


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
        self.model, self.guide, self.objective = model, guide, objective
        self.arguments, self.validation = arguments, validation
        self._called = _at_rows(guide, objective)
        is_judged = is_comparable(objective)
        whole = WholeLoss(model, self._called, objective, rows) if rows and is_judged else None
        #: what happens to the rate, and to all parameters at once
        self.course = Course(
            rate, is_judged, whole, whole or self._comparable_loss(), self._num_latents, times
        )
        if validation is not None:
            validation.statistics = self.course.statistics
        #: the objective, or what records its steps; None until the first one
        self._stepper: Any = None
        self.jit_compile = False  # whether recorded steps are compiled
        self.history: list[float] = []
        self.rates: list[float] = []
        self.terms: list[dict[str, float]] = []
        self.skipped: list[str] = []
        self.num_skipped_now = 0  # in a row
        self.seen = SeenParameters()
        self.due: list[Due] = []  # what the last step brings with it, and was not done yet
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
                self._show(bar)
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
        self.course.adam.clear()
        while self.due and self.due[0].moves:  # half of the parameters may be those of before
            self._move(self.due.pop(0))
        if self._pending is not None and self.course.adam.has_stepped:
            self._commit(*self._pending)
        else:
            self.course.statistics.undo()
            _write(self._random)

    def _reason(self) -> str | None:
        """Why to stop now, or None; or what is due before it is asked again."""
        if self.validation is not None and self.validation.is_over:
            return "validation"
        reason, self.due = self.course.next(self.history, self._met)
        return reason

    @property
    def may_go_on(self) -> bool:
        """Whether a run that has ended may take up the full rate again."""
        is_left = len(self.history) < self.course.rate.num_steps
        return is_left and self.validation is None and not self.course.settling.is_start

    def go_on(self) -> None:
        """Takes up the full rate again, for as many steps as there were before it is asked."""
        self.course.go_on(len(self.history))

    @torch.no_grad()
    def _met(self) -> dict[str, Tensor]:
        """All parameters, also where a run that goes on has taken no step yet."""
        course = self.course
        if self.history and not course.adam.params and course.settling.is_possible:
            args, kwargs = self.last_call
            with poutine.trace(param_only=True) as capture, RandomStream(0), still_statistics():
                with course.statistics.around_step():
                    self.objective.loss(self.model, self._called, *args, **kwargs)
            self.seen.add(_params(capture))
            course.adam.take(_params(capture))
        return course.kept

    def _move(self, where: Due) -> None:
        self.course.statistics.commit()
        self.course.move(where, len(self.history))
        if where is Due.RETREAT:
            self.num_skipped_now = 0

    def _num_latents(self) -> int:
        """Of the posterior, in all generators."""
        parts = self.guide.modules() if isinstance(self.guide, torch.nn.Module) else ()
        generators = [part for part in parts if isinstance(part, Generator)]
        inner = {id(one) for part in generators for one in part.modules() if one is not part}
        return sum(int(part.output_dim) for part in generators if id(part) not in inner)

    def _comparable_loss(self) -> WholeLoss | None:
        """The loss by the same draws, where it means the same and all data are known."""
        if self.arguments.batches is not None or not is_comparable(self.objective):
            return None
        data = self.arguments.args, self.arguments.kwargs
        return WholeLoss(self.model, self._called, self.objective, data)

    def _step(self) -> None:
        """Takes one step, or skips it if the loss or a gradient is not finite."""
        self._last = self.arguments.next()
        args, kwargs = self._last
        self.first_steps.before(args, kwargs)
        step = len(self.history)
        rate = self.course.rate_at(step)
        if self._stepper is None:
            num_left = self.course.rate.num_steps - step
            self._stepper = _stepper_for(self.objective, num_left, self.jit_compile)
        self.course.adam.has_stepped = False
        capture, cause = poutine.trace(param_only=True), None
        try:
            with self.first_steps.watching(), self.course.statistics.around_step(), capture:
                loss = _one_number(
                    self._stepper.loss_and_grads(self.model, self._called, *args, **kwargs)
                )
            what = "a gradient was not finite" if math.isfinite(loss) else "not finite"
            why = f"the loss was {loss:.6g}, {what}"
            self._pending = step, loss, rate
            is_taken = self._descend(_params(capture), loss, rate)
        except (NonFiniteError, ValueError) as error:
            if not isinstance(error, NonFiniteError) and not refuses_nan(error):
                raise
            why = str(error).partition("\n")[0]  # Pyro adds a table of all shapes
            is_taken, cause = False, error
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
        self.course.begin(len(self.history), params)
        return math.isfinite(loss) and self.course.adam.step(params, rate)

    def _commit(self, step: int, loss: float, rate: float) -> None:
        """Counts a step that was taken; the same if it is called twice."""
        self.history[step:], self.rates[step:] = [loss], [rate]
        self.num_skipped_now = 0
        scored = self.validation is not None and (step + 1) % STEPS_BETWEEN_SCORES == 0
        terms = (step + 1) % _STEPS_BETWEEN_TERMS == 0
        more = [Due.EVALUATE_TERMS] * terms + [Due.EVALUATE_SCORE] * scored
        self.due = self.course.after(self.history) + more
        self._pending = None
        self.course.statistics.commit()

    def _follow_up(self) -> None:
        """What the last step brings with it: terms of the objective, and a score."""
        step = len(self.history)
        others: dict[Due, Callable[[], None]] = {
            Due.ADD_TO_MEAN: lambda: self.course.settling.add(step, self.course.kept),
            Due.EVALUATE_TERMS: self._evaluate_terms,
            Due.EVALUATE_SCORE: lambda: self._score(step),
            Due.EVALUATE_START_SCORE: lambda: self._score(0),
        }
        while self.due:
            first = self.due[0]
            self._move(first) if first.moves else others[first]()
            self._random, self.due = read_random_state(), self.due[1:]

    def _skip(self, why: str, error: Exception | None = None) -> None:
        self.course.adam.clear()
        self.course.statistics.undo()
        self.course.statistics.commit()
        self.skipped.append(why)
        self.num_skipped_now += 1
        can_retreat = self.course.retreat.is_possible(len(self.history))
        if can_retreat and self.num_skipped_now >= _MAX_SKIPPED_BEFORE_RETREAT:
            self.due = [Due.RETREAT]
        elif self.num_skipped_now >= _MAX_SKIPPED:
            raise NonFiniteError(
                f"{_MAX_SKIPPED} steps in a row had no finite loss and gradient, after "
                f"{len(self.history)} that had; the last one: {why}"
            ) from error

    @torch.no_grad()
    def _evaluate_terms(self) -> None:
        evaluate = getattr(self.objective, "terms", None)
        if evaluate is None:  # an objective of Pyro
            return
        args, kwargs = self.last_call
        try:
            with still_statistics():
                terms = evaluate(self.model, self.guide, *args, **kwargs)
        except NonFiniteError:  # a bad draw: as good as a skipped step
            return
        step = float(len(self.history))
        known = [one for one in self.terms if one["step"] != step]
        self.terms = [*known, {"step": step} | {name: float(v) for name, v in terms.items()}]

    def _score(self, step: int) -> None:
        """Takes the score of the parameters as they are, of this step, unless it is known."""
        if self.validation is not None:
            self._find_statistics()
            self.validation(step)

    def _find_statistics(self) -> None:
        """Those that a score is of, in a run that goes on and has taken no step yet."""
        statistics = self.course.statistics
        if statistics.are_known:
            return
        args, kwargs = self.last_call
        with suppress(Exception), unseen_run(), torch.no_grad(), statistics.around_step():
            drawn = poutine.trace(self.guide).get_trace(*args, **kwargs)
            poutine.replay(self.model, drawn)(*args, **kwargs)
        statistics.commit()

    def losses_now(self) -> list[float]:
        """Losses of parameters as they are, where all data are known and losses mean the same."""
        return self.course.settling.losses()

    @property
    def is_replaced(self) -> bool:
        """Whether parameters were brought back at the end, of which the last losses are not."""
        return self.course.settling.is_start or self.validation is not None

    def _show(self, bar: Any) -> None:
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

    def notes(self, reason: str) -> list[str]:
        """What a user should know about a run that ended for this reason, in words."""
        other = note_of_other_run(self.history, self._num_earlier)
        notes = list(other)
        if self.skipped:
            notes.append(
                f"{len(self.skipped)} steps were skipped, as the loss or its gradient was not "
                f"finite; the last one: {self.skipped[-1]}"
            )
        kept = self.validation is None or self.validation.is_start_best
        notes += self.course.retreat.notes() + self.course.settling.notes(kept)
        if getattr(self._stepper, "has_changed", False):
            notes.append(
                "the model changed between steps from outside, and up to a hundred steps went by "
                "what it was before: keep what changes in the model, the guide or their arguments"
            )
        scores = list(self.validation.scores.values()) if self.validation is not None else []
        num_bad = sum(not math.isfinite(score) for score in scores)
        if num_bad:
            notes.append(
                f"{num_bad} of {len(scores)} validation scores were NaN or infinite, which are "
                "never the best: look at what validation computes"
            )
        slope = self.course.slope(self.history)
        if slope is not None and slope.is_rising:
            notes.append(
                f"it has diverged: the loss of the last quarter of the steps is {-slope.gain:.4g} "
                "above that of the quarter before; try a lower lr"
            )
        elif self._is_one_series(reason) and not other:
            notes += note_of_rise(self.history) if is_comparable(self.objective) else []
        if reason == "converged" and self.first_steps.is_cut and self.course.whole is None:
            notes += note_of_resolution(slope)
        elif reason == "limit" and self._may_rise(slope):
            warm = self.course.at_full_rate(self.history)
            slope = self.course.slope(warm)
            notes.append(note_of_limit(self.course.rate.num_steps, slope, self.course.level_at))
        return notes

    def _may_rise(self, slope: Slope | None) -> bool:
        """Whether more steps may bring more; none does for latents without a gradient."""
        is_rising = slope is not None and slope.is_rising
        return not (self.course.is_flat or is_rising or self.first_steps.lacks_gradient)

    def _is_one_series(self, reason: str) -> bool:
        """Whether first and last losses are of the same data, and of what the guide is now."""
        is_whole = self.arguments.num_batches <= 1 and not self.course.settling.is_start
        return reason in ("converged", "limit") and is_whole

    def state(self, reason: str) -> dict[str, Any]:
        """All that another run needs to go on from here, as tensors and plain values."""
        return self.course.state() | {
            "reason": reason,
            "random": plain_state(read_random_state()),
            "skipped": list(self.skipped),
            "num_skipped_now": self.num_skipped_now,
            "params": self.seen.state(),
            "due": [one.value for one in self.due],
            "validation": self.validation.state() if self.validation else self._earlier_scores,
            "is_scored": self.validation is not None,
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
            self.course.load(state, len(result.history), is_over)
            self.skipped = list(state["skipped"])
            self.num_skipped_now = 0 if is_over else int(state["num_skipped_now"])
            random_state = state_from_plain(state["random"])
            self.seen = SeenParameters(state["params"])
            self.due = [] if is_over else [Due(one) for one in state["due"]]
            is_replaced = bool(state.get("is_replaced", False))
            self._earlier_scores = state["validation"]
            if self.validation is not None and self._earlier_scores is not None:
                self.validation.load(self._earlier_scores, is_over)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"resume has no state to go on from ({error!r}); expected a result of fit."
            ) from error
        self.history, self.rates = list(result.history), list(result.rates)
        self._num_earlier = 0 if is_replaced else len(self.history)
        self.terms = [dict(one) for one in result.terms]
        _write(random_state)
        self._random = random_state


def _at_rows(guide: Any, objective: Any) -> Any:
    """The guide, whose parameters of rows are to follow these under an objective of Pyro's too."""
    return ParametersAtRows()(guide) if is_pyros(objective) else guide


def _stepper_for(objective: Any, num_steps: int, jit_compile: bool) -> Any:
    """What takes the steps: recorded ones, where so many are worth it."""
    can_be = type(objective) in (LinearisedELBO, LanczosELBO) and objective.vectorize_particles
    if jit_compile and not can_be:
        warn(
            "jit_compile=True, and steps are not compiled: only those of a LinearisedELBO or "
            f"LanczosELBO with vectorize_particles=True are, and these are of {objective!r}",
            PerformanceHint,
        )
    if not can_be or not (jit_compile or num_steps >= _MIN_STEPS_TO_RECORD):
        return objective
    return RecordedObjective(objective, jit_compile=jit_compile, hints=jit_compile)


def _params(capture: Any) -> dict[str, Tensor]:
    """The unconstrained parameters of a step, by name."""
    nodes = capture.trace.nodes
    return {name: unconstrained(nodes[name]["value"]) for name in capture.trace.param_nodes}


def _one_number(loss: Any) -> float:
    if isinstance(loss, (tuple, list)):  # such as ReweightedWakeSleep of Pyro
        raise ArgumentError(
            f"the objective returned {len(loss)} losses; expected one number, which fit minimises. "
            "Train with pyro.infer.SVI(model, guide, optim, loss=objective)."
        )
    return float(loss)
