"""What of an argument a model may go by."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

__all__ = ["kind_of"]


def kind_of(value: Any) -> Hashable:
    """
    Tells what checks of a model are made once for.

    :param value: an argument of a model.
    :returns: a tensor's shape, a flag itself, else the type.
    """
    if isinstance(value, (bool, type(None))):
        return value
    kind: Any = type(value)
    shape: Hashable = getattr(value, "shape", kind)
    return shape
