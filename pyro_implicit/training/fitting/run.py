"""The training loop itself, and what it keeps of each step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit._random import plain_state, read_random_state, state_from_plain
from pyro_implicit._random import write_random_state as _write
from pyro_implicit.exceptions import NonFiniteError, StateError
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.learning_rate import LearningRate
from pyro_implicit.training.fitting.norm_clipped_adam import NormClippedAdam
from pyro_implicit.training.fitting.stall import slope_of
from pyro_implicit.training.fitting.validation import EVERY, Validation

__all__ = ["Run", "collected_warnings"]

_FEWEST = 400  # steps before the objective is asked whether it still rises
_ASK_AGAIN = 1.1  # times as many steps later: who asks at every step is fooled by luck at some
_TERMS_EVERY = 50
_MOST_SKIPPED = 20  # steps in a row without a finite loss


class Run:
    """
    One training of model and guide.

    :param model: the model.
    :param guide: the guide.
    :param objective: what is minimised.
    :param Arguments arguments: those of each step.
    :param LearningRate rate: that of each step.
    :param validation: scores now and then, or None.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        objective: Any,
        arguments: Arguments,
        rate: LearningRate,
        validation: Validation | None,
    ) -> None:
        self.model, self.guide, self.objective = model, guide, objective
        self.arguments, self.rate, self.validation = arguments, rate, validation
        self.adam = NormClippedAdam()
        self.history: list[float] = []
        self.rates: list[float] = []
        self.terms: list[dict[str, float]] = []
        self.warm_from = 0  # the step at which the rate was last set to its full height
        self.ask_at = _FEWEST  # steps at the full rate
        self.is_flat = False
        self.skipped: list[str] = []
        self.num_skipped_now = 0  # in a row

    # ---- the loop

    def train(self, bar: Any) -> str:
        """
        Takes steps until there is a reason to stop.

        :param bar: a progress bar.
        :returns: the reason.
        :raises NonFiniteError: after too many steps in a row without a finite loss.
        """
        random_state = read_random_state()
        try:
            while True:
                reason = self._reason()
                if reason is not None:
                    return reason
                random_state = read_random_state()
                self._step()
                self._tell(bar)
                if self._has_best_behind():
                    return "validation"
        except KeyboardInterrupt:
            self.adam.clear()
            _write(random_state)  # the step that was broken off will be taken anew
            return "interrupted"

    def _reason(self) -> str | None:
        """Why to stop now, or None."""
        step = len(self.history)
        num_warm = step - self.warm_from
        if self.rate.begun is None and num_warm >= self.ask_at:
            self.ask_at = int(_ASK_AGAIN * num_warm)
            self.is_flat = slope_of(self.history[self.warm_from :]).is_flat
            if self.is_flat:
                self.rate.cool(step, num_warm)
        if self.rate.is_cold(step) and self.is_flat:
            return "converged"
        return "limit" if step >= self.rate.num_steps else None

    def _step(self) -> None:
        """Takes one step, or skips it if the loss or a gradient is not finite."""
        step = len(self.history)
        args, kwargs = self.arguments.next()
        rate = self.rate.at(step)
        try:
            with poutine.trace(param_only=True) as capture:
                loss = float(self.objective.loss_and_grads(self.model, self.guide, *args, **kwargs))
            if not math.isfinite(loss) or not self.adam.step(_params(capture), rate):
                self._skip(f"the loss was {loss:.6g}, or a gradient was not finite")
                return
        except NonFiniteError as error:
            self._skip(str(error), error)
            return
        self.num_skipped_now = 0
        self.history.append(loss)
        self.rates.append(rate)
        if (step + 1) % _TERMS_EVERY == 0:
            self._evaluate_terms(args, kwargs)

    def _skip(self, why: str, error: Exception | None = None) -> None:
        self.adam.clear()
        self.skipped.append(why)
        self.num_skipped_now += 1
        if self.num_skipped_now >= _MOST_SKIPPED:
            raise NonFiniteError(
                f"{_MOST_SKIPPED} steps in a row had no finite loss, after {len(self.history)} "
                f"that had; the last one: {why}"
            ) from error

    @torch.no_grad()
    def _evaluate_terms(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        evaluate = getattr(self.objective, "terms", None)
        if evaluate is None:  # an objective of Pyro
            return
        try:
            terms = evaluate(self.model, self.guide, *args, **kwargs)
        except NonFiniteError:  # a bad draw: as good as a skipped step
            return
        self.terms.append(
            {"step": float(len(self.history))} | {name: float(v) for name, v in terms.items()}
        )

    def _has_best_behind(self) -> bool:
        """Whether the validation score, where it is time for one, no longer rises."""
        step = len(self.history)
        due = self.validation is not None and step and step % EVERY == 0
        if not due or self.validation is None or step in self.validation.scores:
            return False
        return self.validation(step)

    def validate_last(self) -> None:
        """Takes the score of the last parameters, unless it is known."""
        if self.validation is not None and len(self.history) not in self.validation.scores:
            self.validation(len(self.history))

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

    def told(self, reason: str) -> list[str]:
        """What a user should know about a run that ended for this reason, in words."""
        told = []
        if self.skipped:
            told.append(
                f"{len(self.skipped)} steps were skipped, as the loss or its gradient was not "
                f"finite; the last one: {self.skipped[-1]}"
            )
        slope = slope_of(self.history) if len(self.history) >= _FEWEST else None
        if slope is not None and slope.is_rising:
            told.append(
                f"it has diverged: the loss of the last quarter of the steps is {-slope.gain:.4g} "
                "above that of the quarter before; try a lower lr"
            )
        elif reason == "limit" and not self.is_flat:
            told.append(
                f"the limit of {self.rate.num_steps} steps came before the objective was seen to "
                "be level: more steps may bring more"
            )
        return told

    def state(self, reason: str) -> dict[str, Any]:
        """All that another run needs to go on from here, as tensors and plain values."""
        return {
            "reason": reason,
            "adam": self.adam.state(),
            "random": plain_state(read_random_state()),
            "warm_from": self.warm_from,
            "cooling": (self.rate.begun, self.rate.length),
            "is_flat": self.is_flat,
            "ask_at": self.ask_at,
            "skipped": list(self.skipped),
        }

    def resume(self, result: Any) -> None:
        """
        Goes on from a result.

        An interrupted run goes on as if nothing had happened; one that had ended begins a new
        stage at the full rate.

        :param FitResult result: of an earlier run.
        :raises StateError: if its state is not one of ours.
        """
        state = result.state
        try:
            self.adam = NormClippedAdam(state["adam"])
            self.warm_from, self.is_flat = state["warm_from"], state["is_flat"]
            self.rate.begun, self.rate.length = state["cooling"]
            self.ask_at = int(state["ask_at"])
            self.skipped = list(state["skipped"])
            random_state = state_from_plain(state["random"])
            is_over = state["reason"] != "interrupted"
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"resume has no state to go on from ({error!r}); expected a result of fit."
            ) from error
        self.history, self.rates = list(result.history), list(result.rates)
        self.terms = [dict(one) for one in result.terms]
        if is_over:
            self.warm_from, self.is_flat, self.ask_at = len(self.history), False, _FEWEST
            self.rate.begun, self.rate.length = None, 0
        _write(random_state)


def _params(capture: Any) -> dict[str, Tensor]:
    """The unconstrained parameters of a step, by name."""
    nodes = capture.trace.nodes
    return {name: nodes[name]["value"].unconstrained() for name in capture.trace.param_nodes}


@contextmanager
def collected_warnings(into: list[str]) -> Iterator[None]:
    """Python's warnings, shown as ever, and kept in words too."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def keep(message: Warning | str, *rest: Any, **options: Any) -> None:
            if str(message) not in into:
                into.append(str(message))
            show(message, *rest, **options)

        warnings.showwarning = keep
        yield
