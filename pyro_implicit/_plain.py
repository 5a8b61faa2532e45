"""Saved values - dicts, lists, numbers, strings and tensors - and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ImplicitError, StateError

__all__ = ["as_state_error", "check_like", "first_difference", "non_finite"]


@contextmanager
def as_state_error(what: str) -> Iterator[None]:
    """
    Turns whatever goes wrong in reading a saved value into a StateError.

    :param str what: what is read, for the message.
    :raises StateError: for whatever the block raises.
    """
    try:
        yield
    except (StateError, Warning):
        raise
    except Exception as error:
        line = (str(error).strip() or "no message").splitlines()[0]
        if isinstance(error, ImplicitError):  # what is to take it up may be made otherwise
            raise StateError(
                f"{what} cannot be taken up ({type(error).__name__}: {line}). Make what is to take "
                "it up with the same options as what was saved; if that is so, the state is "
                "damaged, was changed by hand, or was written by something else."
            ) from error
        raise StateError(
            f"{what} cannot be taken up: it is damaged, was changed by hand, or was written by "
            f"something else ({type(error).__name__}: {line})."
        ) from error


def first_difference(
    found: Any, expected: Any, where: str = "", but: Collection[str] = ()
) -> str | None:
    """
    Tells where two saved values differ first.

    :param found: a saved value.
    :param expected: what it should equal.
    :param str where: name of both, for the answer.
    :param but: keys of dicts that are passed over, here or there.
    :returns: where they differ and how, or None.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        expected, found = (
            {key: value for key, value in one.items() if key not in but}
            for one in (expected, found)
        )
        if expected.keys() != found.keys():
            absent, foreign = (
                sorted(map(str, expected.keys() - found)),
                sorted(map(str, found.keys() - expected)),
            )
            return (
                f"{where or 'it'} lacks {absent or 'nothing'} and has {foreign or 'nothing'} more"
            )
        pairs = [
            (f"{where}.{key}" if where else str(key), found[key], expected[key]) for key in expected
        ]
    elif isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(expected) != len(found):
            return f"{where} has {len(found)} entries there and {len(expected)} here"
        pairs = [
            (f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(found, expected, strict=True))
        ]
    else:
        return (
            None
            if _equal(found, expected)
            else f"{where} is {shown(found)} there and {shown(expected)} here"
        )
    return next((notes for w, a, b in pairs if (notes := first_difference(a, b, w, but))), None)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        a, b = (x if isinstance(x, Tensor) else _as_tensor(x) for x in (a, b))
        return (
            a is not None
            and b is not None
            and a.shape == b.shape
            and bool((a.cpu() == b.cpu()).all())
        )
    return type(a) is type(b) and bool(a == b or (a != a and b != b))


def _as_tensor(value: Any) -> Tensor | None:
    """A bound may be a number here and a tensor there."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return torch.as_tensor(value) if is_number else None


def check_like(found: Any, expected: Any, where: str, shapes: bool = True) -> None:
    """
    Checks that a saved value has the structure of another one.

    :param found: a saved value.
    :param expected: one of the same making. What it has must be in ``found``: keys and kinds of
        values. Values may differ, and None stands for anything.
    :param str where: name of it, for the message.
    :param bool shapes: whether shapes and dtypes of tensors must agree, and None in ``found``
        stands for nothing.
    :raises StateError: if they are not alike.
    """
    if expected is None or (found is None and not shapes and not isinstance(expected, dict)):
        return
    if _kind(found, shapes) != _kind(expected, shapes):
        raise StateError(
            f"{where} of the checkpoint is {shown(found)}; expected {_kind(expected, shapes)}."
        )
    if isinstance(expected, dict):
        absent = sorted(str(key) for key in expected if key not in found)
        if absent:
            raise StateError(f"{where} of the checkpoint lacks {absent}.")
        for key, value in expected.items():
            check_like(found[key], value, f"{where}[{key!r}]", shapes)
    elif isinstance(expected, (list, tuple)) and len(expected) == len(found):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            check_like(a, b, f"{where}[{i}]", shapes)


def _kind(value: Any, shapes: bool) -> str:
    if isinstance(value, Tensor) and not shapes:
        return "a tensor"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, dict):
        return "a dict"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def non_finite(values: dict[str, Any]) -> list[str]:
    """
    Names the values that are NaN or infinite.

    :param dict values: tensors, numbers, or lists and tuples of them, by name.
    :returns: the names of those that have an infinite entry or one that is no number.
    """
    return [name for name, value in values.items() if not _is_finite(value)]


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
