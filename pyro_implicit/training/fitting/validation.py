"""Scores of a fit on data that it does not see."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit._checks import check_number, shown
from pyro_implicit._signature import leading_arguments, parameters_of, places_of
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.seen_observations import BEGIN_OF_WARNING
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.rows.same_rows import are_alike, fingerprint
from pyro_implicit.inference.log_predictive_density import log_predictive_density
from pyro_implicit.training.early_stopping import EarlyStopping
from pyro_implicit.training.fitting.parameters.parameter_copies import copied, set_to
from pyro_implicit.training.fitting.parameters.running_statistics import RunningStatistics

__all__ = ["Validation", "check_validation", "held_arguments", "held_keywords"]

STEPS_BETWEEN_SCORES = 100
_PATIENCE = 10  # scores in a row that are no better than the best, before training stops
_NUM_SAMPLES_PER_SCORE = 50


def check_validation(value: Any) -> Any:
    """
    Checks what a fit is to be judged by.

    :returns: ``value``.
    :raises ArgumentError: unless it is a tuple, a dictionary by name, a function or None.
    """
    function = callable(value) and not isinstance(value, type)
    if function:
        _check_takes_nothing(value)
    named = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if value is None or function or ((named or isinstance(value, tuple)) and value):
        return value
    raise ArgumentError(
        f"validation={shown(value)}; expected held-out arguments of the model, such as "
        "(x_validation, y_validation) or {'x': x_validation, 'y': y_validation}, or a function "
        "without arguments whose value should rise."
    )


def held_arguments(what: Any) -> tuple[Any, ...] | None:
    """
    The positional ones among held-out arguments.

    :param what: what a fit is judged by.
    :returns: a tuple, without any for a dictionary; None for a function or nothing.
    """
    if isinstance(what, Mapping):
        return ()
    return what if isinstance(what, tuple) else None


def _check_names(model: Any, named: Mapping[str, Any]) -> None:
    """
    Refuses a dictionary that holds no arguments by name.

    :raises ArgumentError: for a name that the model does not take.
    """
    taken = parameters_of(model)
    if taken is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return
    foreign = [name for name in named if name not in taken]
    if foreign:
        raise ArgumentError(
            f"validation has {', '.join(foreign)}, and the model takes {', '.join(taken) or 'none'}"
            ": a dictionary holds held-out arguments by name. For a model of one dictionary write "
            "a tuple of it, validation=(held,)."
        )


def _check_takes_nothing(function: Any) -> None:
    """
    Refuses a function that waits for arguments.

    :raises ArgumentError: if it cannot be called without.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ArgumentError(
            f"validation={shown(function)} is called without arguments, and takes some ({error}). "
            "Write lambda: score(guide), or held-out arguments of the model, "
            "validation=(x_validation, y_validation)."
        ) from error
    except ValueError:  # nobody knows its signature
        return


def held_keywords(model: Any, what: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """
    Finds the keyword arguments of training that go with held-out arguments.

    :param model: the model.
    :param what: a tuple or a dictionary of held-out arguments; anything else needs none.
    :param tuple args: positional arguments of training.
    :param dict kwargs: its keyword arguments.
    :returns: those that no held-out argument stands for, and the held-out ones by name.
    :raises ArgumentError: if held-out rows would be compared with what was observed of others; for
        names that are none of the model's arguments.
    """
    held = held_arguments(what)
    if held is None:
        return kwargs
    named = dict(what) if isinstance(what, Mapping) else {}
    _check_names(model, named)
    covered = {*places_of(model)[: len(held)], *named}
    left = {name: value for name, value in kwargs.items() if name not in covered}
    seen, now = _rows_among(model, args, kwargs), _rows_among(model, held, named)
    if seen is None or are_alike(seen, now):
        return left | named
    of_rows = {n: v for n, v in left.items() if _has_rows(v, seen[0])}
    observed = _observed_among(model, held, left | named, of_rows) if of_rows else []
    if observed:
        few = ", ".join(f"{name}=" for name in observed)
        raise ArgumentError(
            f"validation has rows of its own, and {few} is what the model observed "
            "in training, which they would be compared with. Give all arguments in their order, "
            "validation=(x_validation, y_validation), or by name, validation={'x': x_validation, "
            "'y': y_validation}."
        )
    return left | named


def _rows_among(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A fingerprint of the inputs; of a model all of whose arguments have names, by these."""
    named = [kwargs[name] for name in sorted(kwargs)]
    rows = tuple(one for one in named if isinstance(one, Tensor) and one.dim())
    return fingerprint(leading_arguments(model, args, kwargs) or rows)


def _has_rows(value: Any, count: int) -> bool:
    is_plain = isinstance(value, Tensor) and value.layout is torch.strided
    return is_plain and value.dim() > 0 and len(value) == count


def _observed_among(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], of_rows: Mapping[str, Tensor]
) -> list[str]:
    """Names of arguments that are the value of an observed site of rows, whole or by a view."""
    try:
        with unseen_run():
            nodes = poutine.trace(model).get_trace(*args, **kwargs).nodes.values()
    except Exception:  # what held-out arguments lack is told by their first score
        return []
    sites = [node for node in nodes if node["type"] == "sample" and node["is_observed"]]
    values = [s["value"] for s in sites if any(f.vectorized for f in s["cond_indep_stack"])]
    plain = [v for v in values if isinstance(v, Tensor) and v.layout is torch.strided]
    places = {one.data_ptr() for one in plain if one.numel()}
    return [name for name, one in of_rows.items() if one.data_ptr() in places]


class Validation:
    """
    Scores model and guide now and then, keeps the best parameters, and says when to stop.

    :param what: a tuple or dictionary of held-out arguments, scored by their mean
        :func:`~pyro_implicit.log_predictive_density` with the same random numbers each time, or a
        function without arguments.
    :param model: the model.
    :param guide: the guide.
    :param kwargs: keyword arguments of both, see :func:`held_keywords`.
    """

    def __init__(self, what: Any, model: Any, guide: Any, kwargs: Mapping[str, Any]) -> None:
        self._score: Callable[[], Any] = what
        self._held: Callable[[int], float] | None = None
        if (held := held_arguments(what)) is not None:
            self._held = partial(_density, model, guide, held, kwargs)
            self._score = partial(self._held, _NUM_SAMPLES_PER_SCORE)
        self._modules = [m for m in (model, guide) if isinstance(m, nn.Module)]
        self._stopping = EarlyStopping(_PATIENCE, mode="max")
        #: those of networks that the model calls, wherever it has them from
        self.statistics = RunningStatistics()
        self._best_statistics: dict[str, Tensor] = {}
        self._are_lost = False  # those of the best score
        self.scores: dict[int, float] = {}

    def __call__(self, step: int) -> None:
        """
        Takes a score, unless it is known.

        :param int step: number of steps taken.
        :raises ArgumentError: if the score is no number.
        """
        if step in self.scores:
            return
        score = check_number("the value of validation()", self._score(), finite=False)
        if math.isfinite(score):
            self._stopping.step(score, *self._modules)
            if self._stopping.best_step == self._stopping.num_steps - 1:
                self._best_statistics = copied(self.statistics.values)
                self._are_lost = False
        self.scores[step] = score  # last: what was interrupted is done anew

    def try_once(self) -> None:
        """Looks whether held-out arguments can be scored, before there is anything to lose."""
        if self._held is not None:
            self._held(1)

    @property
    def is_over(self) -> bool:
        """Whether the last scores have brought nothing better."""
        return self._stopping.is_over

    def state(self) -> dict[str, Any]:
        """All scores, and the best parameters."""
        return {
            "scores": dict(self.scores),
            "stopping": self._stopping.state_dict(),
            "statistics": {}  # in another process nobody can tell which is whose
            if self.statistics.come_in_turns
            else copied(self._best_statistics),
            "lost": self.statistics.come_in_turns or self._are_lost,
        }

    def load(self, state: Mapping[str, Any], is_over: bool) -> None:
        """
        Goes on from the scores and the best parameters of an earlier run.

        :param state: what :meth:`state` returned.
        :param bool is_over: whether that run had ended: then patience begins anew.
        :raises StateError: if it is no such state.
        """
        stopping = dict(state["stopping"])
        self._stopping.load_state_dict(stopping | {"waited": 0} if is_over else stopping)
        self._best_statistics = copied(state.get("statistics", {}))
        self._are_lost = bool(state.get("lost", False))
        self.scores = {int(step): float(score) for step, score in state["scores"].items()}

    def restore(self) -> None:
        """
        Brings the best parameters back, if there was a score.

        :warns UserWarning: if running statistics were lost in between.
        """
        if self._stopping.best_step is not None:
            if self._are_lost:
                warn(
                    "the best parameters are of before the run was resumed and are back; running "
                    "statistics of networks that batches call in turns (batch normalisation) are "
                    "those of the last step, since a resumed run cannot tell whose they were. "
                    "Score it anew, or fit without a break."
                )
            self._stopping.restore(*self._modules)
            set_to(self.statistics.values, self._best_statistics)

    @property
    def is_start_best(self) -> bool:
        """Whether the start was scored, and no score was better."""
        finite = {step: score for step, score in self.scores.items() if math.isfinite(score)}
        return 0 in finite and max(finite, key=lambda step: finite[step]) == 0


def _density(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], num_samples: int
) -> float:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", BEGIN_OF_WARNING)
        densities = log_predictive_density(
            model, guide, *args, num_samples=num_samples, seed=0, **kwargs
        )
    return float(densities.mean())
