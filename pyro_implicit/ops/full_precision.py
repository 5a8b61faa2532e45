"""A place that autocast does not reach."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["in_full_precision"]


def in_full_precision(like: Tensor) -> AbstractContextManager[object]:
    """
    Turns autocast off where it is on: a context costs as much as ten operations on few numbers.

    :param torch.Tensor like: gives the device, of any shape.
    :returns: a context.
    """
    device = like.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
