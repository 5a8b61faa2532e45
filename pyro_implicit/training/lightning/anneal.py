"""Change one number as training goes on: KL warm-up, annealing of a likelihood's scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_callable, check_text
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training.lightning.optional import pytorch

__all__ = ["Anneal"]


class Anneal(pytorch.Callback):
    """
    A Lightning callback that sets ``target.attribute`` to ``schedule(step)``.

    It does so before every training step, ``step`` being the number of optimiser steps taken:
    nothing to save, nothing to restore. The value is logged as ``anneal_<attribute>``.

    Warm-up of the KL term, and the scale of a likelihood going down::

        Anneal(objective, "kl_weight", linear_schedule(0.0, 1.0, 1000))
        Anneal(likelihood, "scale", geometric_schedule(1.0, 0.1, 5000))

    After training the attribute keeps its last value: let a KL warm-up end at 1, the honest ELBO.

    :param target: any object: the objective, or a module that the model reads the number from.
    :param str attribute: an attribute of it that is a number or a tensor of one number (a buffer).
    :param schedule: from a step to a value, see
        :func:`~pyro_implicit.training.schedules.linear_schedule`.
    :raises ArgumentError: if there is no such attribute, or it is something else.
    """

    def __init__(self, target: Any, attribute: str, schedule: Callable[[int], float]) -> None:
        check_text("attribute", attribute, "the name of an attribute, such as 'kl_weight'")
        value = getattr(target, attribute, None)
        is_tensor = isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number or (is_tensor and value.numel() == 1)):  # type: ignore[union-attr]
            raise ArgumentError(
                f"{attribute!r} of {type(target).__name__} is {value!r}; expected a number or a "
                "tensor of one number that is no parameter, such as objective.kl_weight or a "
                "buffer of the model."
            )
        expected = "a function of the step, such as linear_schedule(0.0, 1.0, 1000)"
        check_callable("schedule", schedule, expected)
        self.target, self.attribute, self.schedule = target, attribute, schedule

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Sets and logs the value of this step."""
        value = float(self.schedule(trainer.global_step))
        now = getattr(self.target, self.attribute)
        if isinstance(now, Tensor):
            now.fill_(value)
        else:
            setattr(self.target, self.attribute, value)
        pl_module.log(f"anneal_{self.attribute}", value, on_step=True, on_epoch=False, batch_size=1)
