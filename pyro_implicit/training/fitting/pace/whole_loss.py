"""The loss on all rows by the same draws at each look, and whether it still falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch

from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.handlers.errors.value_errors import refuses_nan
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.training.fitting.all_rows import Call

__all__ = ["WholeLoss"]

_NUM_SEEDS_PER_LOOK = 4
_NUM_LOOKS_AVERAGED = 3  # since parameters wander at a constant rate
_MIN_GAIN_IN_NATS = 0.05  # smaller ones count as none


class WholeLoss:
    """
    The loss on all rows, with the same noise at each look.

    The loss of a step has the noise of its batch, which hides gains of several nats. That of all
    rows by the same draws has none but the wandering of the parameters.

    :param model: the model.
    :param guide: the guide.
    :param objective: whose losses at two times mean the same.
    :param rows: positional and keyword arguments with all rows.
    :param values: the losses so far by step, of an earlier run.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        objective: Any,
        rows: Call,
        values: Sequence[tuple[int, float]] = (),
    ) -> None:
        self.model, self.guide, self.objective, self.rows = model, guide, objective, rows
        self.values = list(values)

    def look(self, step: int) -> bool:
        """
        Takes the loss now; the same if it is called twice.

        :param int step: the number of steps so far.
        :returns: whether it is level: the mean of the last three looks is less than 0.05 nats below
            that of the three before them.
        """
        self.values = [
            *(one for one in self.values if one[0] != step),
            (step, fmean(self.by_seed(_NUM_SEEDS_PER_LOOK))),
        ]
        losses = [loss for _, loss in self.values[-2 * _NUM_LOOKS_AVERAGED :]]
        if len(losses) < 2 * _NUM_LOOKS_AVERAGED:
            return False
        before = sum(losses[:_NUM_LOOKS_AVERAGED]) / _NUM_LOOKS_AVERAGED
        after = sum(losses[_NUM_LOOKS_AVERAGED:]) / _NUM_LOOKS_AVERAGED
        return not before - after > _MIN_GAIN_IN_NATS  # nor where a loss is not finite

    def by_seed(self, repeats: int) -> list[float]:
        """
        The losses with the parameters as they are now.

        :param int repeats: how many.
        :returns: one for each seed from 0; NaN where it is not finite.
        """
        args, kwargs = self.rows
        losses = []
        with torch.no_grad(), evaluation_mode():
            for seed in range(repeats):
                with RandomStream(seed):
                    try:
                        loss = self.objective.loss(self.model, self.guide, *args, **kwargs)
                    except NonFiniteError:
                        loss = math.nan
                    except ValueError as error:
                        if not refuses_nan(error):
                            raise
                        loss = math.nan
                losses.append(float(loss))
        return losses
