"""A model's arguments, by what they are called in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["named_arguments", "tensors_among"]


def named_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """
    All arguments, by what they are called in messages.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: by name; positional ones by their number.
    """
    return {f"argument {i}": value for i, value in enumerate(args)} | dict(kwargs)


def tensors_among(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """
    Those arguments that are tensors, by what they are called in messages.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: by name, of any shape.
    """
    named = named_arguments(args, kwargs)
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}
