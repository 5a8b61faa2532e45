"""A look at whether draws that are made one after the other could be made at once."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch

from pyro_implicit._hints import hint
from pyro_implicit._random import RandomStream
from pyro_implicit.objectives.particles.mapped_draws import VMAP

__all__ = ["LoopedWatch"]

_MIN_SECONDS_BEFORE_TRIAL = 20.0  # of looped training: after less a trial is not worth its time
_MIN_STEPS_BEFORE_TRIAL = 50
_MIN_SPEED_UP = 2.0  # of vectorised draws over looped ones, that is worth a hint


class LoopedWatch:
    """
    Adds up the time of looped training; after a while it tries a vectorised pass, or a map, once.

    The trial has random numbers of its own and no gradients; a model that does not take it is left
    alone.
    """

    def __init__(self) -> None:
        self.seconds, self.steps, self.done = 0.0, 0, False

    def __call__(
        self, seconds: float, objective: Any, model: Any, guide: Any, args: Any, kwargs: Any
    ) -> None:
        """
        Counts a training step.

        :param float seconds: that it took.
        :param objective: what is minimised.
        :param model: the model.
        :param guide: the guide.
        :param args: positional arguments of both.
        :param kwargs: keyword arguments of both.
        :warns PerformanceHint: if a vectorised pass is at least twice as fast.
        """
        self.seconds, self.steps = self.seconds + seconds, self.steps + 1
        if (
            self.done
            or self.seconds < _MIN_SECONDS_BEFORE_TRIAL
            or self.steps < _MIN_STEPS_BEFORE_TRIAL
        ):
            return
        self.done = True
        for way in (True, VMAP) if objective.can_be_mapped else (True,):
            try:
                looped = _timed(objective, False, model, guide, args, kwargs)
                at_once = _timed(objective, way, model, guide, args, kwargs)
            except Exception:  # whatever a model does with shapes that it does not expect
                continue
            if looped > _MIN_SPEED_UP * at_once:
                hint(
                    "vectorize_particles",
                    f"{type(objective).__name__} makes its {objective.num_particles} draws one "
                    f"after the other, and this model can be run for all at once: "
                    f"{1e3 * at_once:.3g} instead of {1e3 * looped:.3g} ms without gradients. "
                    f"Write vectorize_particles={way!r}.",
                )
            return


@torch.no_grad()
def _timed(
    objective: Any, at_once: bool | str, model: Any, guide: Any, args: Any, kwargs: Any
) -> float:
    """Seconds of the second of two evaluations: the first one may have to look around."""
    trial = copy.copy(objective)
    trial.vectorize_particles = at_once
    trial.forget_models()
    seconds = 0.0
    for _ in range(2):
        with RandomStream(0):
            start = time.perf_counter()
            sum(term.sum() for term in trial.terms(model, guide, *args, **kwargs).values()).item()
            seconds = time.perf_counter() - start
    return seconds
