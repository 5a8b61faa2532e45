"""What a fit has reached, and why it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro_implicit._axes import new_or_given
from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_instance,
    check_names,
    check_number,
    shown,
)
from pyro_implicit.exceptions import ArgumentError

__all__ = ["REASONS", "FitResult"]

#: why a fit may end, and how that is told
REASONS = {
    "converged": "the objective no longer rose, and the learning rate was cooled",
    "validation": "the validation score no longer rose; its best parameters are back",
    "limit": "the limit of steps was reached",
    "interrupted": "it was interrupted",
}


@dataclass(frozen=True)
class FitResult:
    """
    What :func:`~pyro_implicit.fit` has reached, and why it ended.

    :param history: the loss of each step that was taken.
    :param rates: the learning rate of each.
    :param terms: the parts of the objective now and then, by name, with the ``step`` they were
        evaluated at.
    :param scores: the validation score now and then, by the number of steps taken.
    :param str reason: ``"converged"``, ``"validation"``, ``"limit"`` or ``"interrupted"``.
    :param objective: what was minimised.
    :param float seconds: of the whole fit, that of earlier runs included if it was resumed.
    :param str start: how the guide began, where ``init_from="auto"`` chose that: see
        :attr:`ImplicitGuide.start_report <pyro_implicit.guides.ImplicitGuide.start_report>`.
    :param str promise: whether the loss is a bound with this guide, in words; empty if that is not
        known.
    :param warnings: what a user should know, in words.
    :param dict state: what ``fit(..., resume=result)`` goes on from.
    :raises ArgumentError: for anything else.
    """

    history: list[float] = field(repr=False)
    reason: str
    objective: Any
    seconds: float
    rates: list[float] = field(default_factory=list, repr=False)
    terms: list[dict[str, float]] = field(default_factory=list, repr=False)
    scores: dict[int, float] = field(default_factory=dict, repr=False)
    warnings: list[str] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    start: str = field(default="", repr=False)
    promise: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_choice("reason", self.reason, tuple(REASONS))
        check_number("seconds", self.seconds, minimum=0)
        check_names("warnings", check_instance("warnings", self.warnings, list, "a list"))
        if not callable(getattr(self.objective, "loss_and_grads", None)):
            raise ArgumentError(f"objective={shown(self.objective)}; expected an objective.")
        for name, minimum in (("history", None), ("rates", 0)):
            for value in check_instance(name, getattr(self, name), list, "a list of numbers"):
                check_number(f"an entry of {name}", value, minimum=minimum)
        for one in check_instance("terms", self.terms, list, "a list of dictionaries"):
            for name, value in check_instance("terms", one, Mapping, "dictionaries").items():
                check_number(f"terms[{name!r}]", value)
        for step, score in check_instance("scores", self.scores, Mapping, "a dictionary").items():
            check_count("a step of scores", step, 0)
            check_number(f"scores[{step}]", score, finite=False)
        check_instance("state", self.state, Mapping, "that of a fit")
        for name in ("start", "promise"):
            check_instance(name, getattr(self, name), str, "a text")

    @property
    def num_steps(self) -> int:
        """The number of steps taken."""
        return len(self.history)

    @property
    def loss(self) -> float:
        """The mean loss of the last tenth of the steps, NaN without any."""
        last = self.history[-max(len(self.history) // 10, 1) :]
        return sum(last) / len(last) if last else float("nan")

    def __str__(self) -> str:
        is_replaced = self.state.get("is_replaced", False)
        replaced = ", before parameters were brought back" if is_replaced else ""
        lines = [
            f"{self.num_steps} steps in {self.seconds:.1f} s: {REASONS[self.reason]}.",
            f"loss {self.loss:.6g} (mean of the last tenth{replaced}), objective "
            f"{_named(self.objective)}",
        ]
        if self.promise:
            lines[-1] += f": {self.promise}"
        if self.start:
            lines.append(self.start.splitlines()[0])
        if self.scores:
            lines.append(self._shown_scores())
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _shown_scores(self) -> str:
        finite = {step: score for step, score in self.scores.items() if math.isfinite(score)}
        if not finite:
            return f"no validation score was finite, of {len(self.scores)}"
        best = max(finite, key=lambda step: finite[step])
        notes = f"best validation score {finite[best]:.6g}, after {best} steps"
        if self.state.get("is_scored", True):
            return notes
        return f"{notes}, of a run before this one: the parameters that it ended with have no score"

    def plot(self, ax: Any = None) -> Any:
        """
        Plots the loss, its running mean and, if there are any, the validation scores.

        :param ax: Matplotlib axes; new ones by default.
        :returns: the axes.
        :raises ArgumentError: for anything else, or if no step was taken.
        :raises MissingExtraError: without Matplotlib.
        """
        if not self.history:
            raise ArgumentError("there is nothing to plot: no step was taken.")
        ax = new_or_given(ax)
        steps = range(1, self.num_steps + 1)
        ax.plot(steps, self.history, lw=0.5, alpha=0.4, label="loss")
        ax.plot(steps, _running_mean(self.history), label="its running mean")
        lowest, highest = sorted(self.history)[0], _usual_highest(self.history)
        if lowest < highest:
            ax.set_ylim(lowest, highest)
        ax.set(xlabel="step", ylabel="loss")
        if self.scores:
            twin = ax.twinx()
            twin.plot(list(self.scores), list(self.scores.values()), "k.-", label="validation")
            twin.set(ylabel="validation score")
        ax.legend()
        return ax


def _named(objective: Any) -> str:
    """An objective as it shows itself, by its class if that is an address only."""
    shown = str(objective)
    return type(objective).__name__ if shown == object.__repr__(objective) else shown


def _running_mean(values: list[float]) -> list[float]:
    """Exponential, over a fiftieth of the series."""
    keep = 1 - 1 / max(len(values) / 50, 1)
    means, mean, weight = [], 0.0, 0.0
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        means.append(mean / weight)
    return means


def _usual_highest(values: list[float]) -> float:
    """A bound that leaves out what only the first steps have."""
    return sorted(values)[int(0.98 * (len(values) - 1))]
