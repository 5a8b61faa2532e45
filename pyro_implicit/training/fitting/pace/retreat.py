"""Going back to where parameters still were good, after a run has been thrown off its way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from torch import Tensor

from pyro_implicit._checks import check_count, check_number
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.training.fitting.pace.stall import noise_of_step
from pyro_implicit.training.fitting.parameters.parameter_copies import copied, set_to

__all__ = ["Retreat", "is_comparable"]

_STEPS_PER_WINDOW = 50  # whose losses are looked at together
_MAX_RISE_IN_SDS = 10.0  # of one step's loss: a window so far above the best has gone astray
_MAX_RISE_TO_KEEP_IN_SDS = 3.0  # the parameters after a window so near to the best are copied
_MAX_RETREATS = 6  # each to half the rate


def is_comparable(objective: Any) -> bool:
    """
    Whether the losses of two steps far apart mean the same.

    Those of an objective whose weights change with the steps, that learns a critic, or that takes
    the entropy into some of the steps alone, may rise and nothing be wrong.
    """
    if getattr(objective, "entropy_every", 1) != 1:
        return False
    return type(objective) in (LinearisedELBO, LanczosELBO, Trace_ELBO, TraceEnum_ELBO)


class Retreat:
    """
    Copies of the parameters while all goes well, and the way back to them.

    The copy that a run goes back to is followed by a whole window of good losses: parameters are
    often spoilt some steps before the loss tells.

    The losses of batches are those of different rows, and batches may come in an order of the data.
    A window of them is therefore compared with the worst one of two epochs, wherever it begins.

    :param bool judges_losses: whether a loss that has grown far above its best counts as astray,
        see :func:`is_comparable`.
    :param state: what :meth:`state` returned, to go on from.
    """

    def __init__(self, judges_losses: bool, state: Mapping[str, Any] | None = None) -> None:
        self.judges_losses = judges_losses
        self.num_batches: int | None = None  # of an epoch; None for whole data at each step
        self._kept: list[dict[str, Any]] = []  # the older one is that to go back to
        self._best = math.inf  # the lowest median of a window, or of the worst in two epochs
        self._noise = math.inf  # deviation of one step's loss in that window
        self._begin = 0  # the step at which windows are counted from
        #: the steps at which it went back, and those it went back to
        self.retreats: list[tuple[int, int]] = []
        if state is not None:
            self._load(state)

    @property
    def factor(self) -> float:
        """What the learning rate is multiplied by."""
        return 0.5 ** len(self.retreats)

    def is_possible(self, step: int) -> bool:
        """
        Whether there is a copy to go back to, and a retreat left.

        :param int step: the number of steps so far; without a new one nothing would change.
        """
        has_moved = not self.retreats or self.retreats[-1][0] != step
        return bool(self._kept) and has_moved and len(self.retreats) < _MAX_RETREATS

    def begin_at(self, step: int) -> None:
        """
        Counts windows from a step, for a run that goes on where another one has ended.

        :param int step: the number of steps so far.
        """
        self._begin = step

    def begin(self, step: int, params: Mapping[str, Tensor]) -> None:
        """
        Copies the parameters that a run begins with, unless there is a copy.

        :param int step: the number of steps so far.
        :param params: by name, before the next one.
        """
        if not self._kept:
            self._kept = [{"step": step, "params": copied(params)}]

    def look(self, losses: Sequence[float], params: Mapping[str, Tensor]) -> bool:
        """
        Looks at the last losses, if another window is full, and copies good parameters.

        :param losses: of all steps so far.
        :param params: as they are now, by name.
        :returns: whether the run has gone astray.
        """
        num_new = len(losses) - self._begin
        if num_new < _STEPS_PER_WINDOW or num_new % _STEPS_PER_WINDOW:
            return False
        level = float(np.median(losses[-_STEPS_PER_WINDOW:]))
        judges = self.judges_losses and self.num_batches != 0
        if judges and level > self._best + _MAX_RISE_IN_SDS * self._noise:
            return self.is_possible(len(losses))
        self._learn(losses, num_new)
        is_near = not judges or level <= self._best + _MAX_RISE_TO_KEEP_IN_SDS * self._noise
        if is_near and not (self._kept and self._kept[-1]["step"] == len(losses)):
            self._kept = [*self._kept[-1:], {"step": len(losses), "params": copied(params)}]
        return False

    def _learn(self, losses: Sequence[float], num_new: int) -> None:
        """What a good level is, from the last losses."""
        window = np.asarray(losses[-_STEPS_PER_WINDOW:])
        if self.num_batches is not None:
            # windows of any phase
            span = max(2 * self.num_batches, _STEPS_PER_WINDOW) + _STEPS_PER_WINDOW - 1
            if num_new < span:
                return
            series = np.asarray(losses[-span:])
            windows = np.lib.stride_tricks.sliding_window_view(series, _STEPS_PER_WINDOW)
            window = windows[np.median(windows, axis=-1).argmax()]
        level = float(np.median(window))
        if level < self._best:
            self._best, self._noise = level, _noise_of(window)

    def go_back(self, step: int, params: Mapping[str, Tensor]) -> None:
        """
        Sets parameters to their good copy; the same if it is called twice at one step.

        :param int step: the number of steps so far.
        :param params: those to be set, by name; what has no copy stays.
        """
        good = self._kept[0]
        set_to(params, good["params"])
        self._kept, self._begin = [good], step
        if not self.retreats or self.retreats[-1][0] != step:
            self.retreats.append((step, good["step"]))

    def notes(self) -> list[str]:
        """What a user should know, in words."""
        if not self.retreats:
            return []
        step, good = self.retreats[-1]
        times = "once" if len(self.retreats) == 1 else f"{len(self.retreats)} times"
        place = f"to those after {good}" if good else "to the start"
        return [
            f"the run went astray {times}, and back to parameters that were good, at half the "
            f"learning rate each time; last after {step} steps, {place}: a lower lr may be "
            "faster"
        ]

    def state(self) -> dict[str, Any]:
        """Copies, as tensors and plain values."""
        kept = [{"step": one["step"], "params": copied(one["params"])} for one in self._kept]
        return {
            "kept": kept,
            "best": (self._best, self._noise),
            "begin": self._begin,
            "turns": list(self.retreats),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        for one in state["kept"]:
            step = check_count("step", one["step"], 0)
            self._kept.append({"step": step, "params": copied(one["params"])})
        best, noise = state["best"]
        self._best = check_number("best", best, finite=False)
        self._noise = check_number("noise", noise, finite=False)
        self._begin = check_count("begin", state["begin"], 0)
        self.retreats = [
            (check_count("a step of a retreat", a), check_count("a step of a retreat", b, 0))
            for a, b in state["turns"]
        ]


def _noise_of(window: np.ndarray) -> float:
    """The deviation of one loss, and never none."""
    return max(noise_of_step(window), 1e-3 * abs(float(np.median(window))), 1e-3)
