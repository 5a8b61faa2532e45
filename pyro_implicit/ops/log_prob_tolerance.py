"""By how much log-densities of one point may differ that were computed in two ways."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["is_half_precision", "log_prob_tolerance"]

_TOLERANCE = 1e-2  # in nats, and relative: the sums are in other orders
_HALF_PRECISION_TOLERANCE = 0.1
_HALF_PRECISION_DTYPES = (torch.float16, torch.bfloat16)


def is_half_precision(*values: Tensor) -> bool:
    """
    Whether some values were computed in half precision, or may have been within autocast.

    :param values: of any shape, at least one.
    :returns: whether they were.
    """
    if torch.is_autocast_enabled(values[0].device.type):
        return True
    return any(value.dtype in _HALF_PRECISION_DTYPES for value in values)


def log_prob_tolerance(*values: Tensor) -> float:
    """
    The tolerance of log-densities, absolute in nats and relative to their size.

    :param values: log-densities of any shape, at least one.
    :returns: it.
    """
    return _HALF_PRECISION_TOLERANCE if is_half_precision(*values) else _TOLERANCE
