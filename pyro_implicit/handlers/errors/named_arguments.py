"""A model's arguments, by what they are called in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_holds_numbers", "named_arguments", "tensors_among"]


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


def check_holds_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """
    Refuses tensors that have a shape alone.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :raises ArgumentError: for one on torch's device "meta".
    """
    for name, value in tensors_among(args, kwargs).items():
        if value.is_meta:
            raise ArgumentError(
                f"{name} is on the device 'meta', which holds shapes and no numbers; expected a "
                "tensor with data."
            )
