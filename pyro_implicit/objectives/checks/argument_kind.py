"""Keys for the caches of checks that are made once for each kind of arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

__all__ = ["kind_of"]


def kind_of(value: Any) -> Hashable:
    """
    A hashable key for an argument, so that a check of a model is made once for each.

    :param value: an argument of a model.
    :returns: the shape of a tensor, the value of a flag, else the type.
    """
    if isinstance(value, (bool, type(None))):
        return value
    kind: Any = type(value)
    shape: Hashable = getattr(value, "shape", kind)
    return shape
