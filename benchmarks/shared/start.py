"""Guides that begin at given values."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import init_to_value
from torch import Tensor

__all__ = ["begin_at"]


def begin_at(values: dict[str, Tensor]) -> Any:
    """
    Pyro's ``init_to_value`` with copies: an ``AutoNormal`` makes its parameters of the tensors that
    it is given, and its training would move where the next guide begins.

    :param dict values: by site.
    """
    return init_to_value(values={name: value.clone() for name, value in values.items()})
