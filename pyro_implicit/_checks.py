"""Checks of arguments: one home for every public entry of the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError

__all__ = [
    "check_callable",
    "check_choice",
    "check_count",
    "check_counts",
    "check_flag",
    "check_instance",
    "check_number",
    "check_text",
    "shown",
]


def shown(value: Any, width: int = 60) -> str:
    """
    :param value: what was found.
    :param int width: most characters of it to show.
    :returns: a short text for an error message; never the contents of a tensor.
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # a broken repr must not hide the message that it is for
        text = f"a {type(value).__name__}"
    return text if len(text) <= width else f"a {type(value).__name__}, {text[: width - 3]}..."


def check_count(
    name: str, value: Any, minimum: int = 1, maximum: int | None = None, why: str = ""
) -> int:
    """
    :param str name: of the argument.
    :param value: an integer, of NumPy's kinds too; neither a flag nor a float.
    :param int minimum: smallest value allowed.
    :param int maximum: largest value allowed, if any.
    :param str why: appended to the message, such as ``" (the number of draws)"``.
    :returns: ``value`` as a plain integer.
    :raises ArgumentError: for anything else.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum or (maximum is not None and value > maximum):
        limit = "" if maximum is None else f" and <= {maximum}"
        raise ArgumentError(f"{name}={shown(value)}; expected an integer >= {minimum}{limit}{why}.")
    return int(value)


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    why: str = "",
) -> float:
    """
    :param str name: of the argument.
    :param value: a finite number, of NumPy's kinds or a tensor of one element too; no flag.
    :param float minimum: smallest value allowed.
    :param float above: what it must exceed.
    :param float maximum: largest value allowed.
    :param float below: what it must stay below.
    :param str why: appended to the message.
    :returns: ``value`` as a plain float.
    :raises ArgumentError: for anything else.
    """
    number = _as_float(value)
    bounds = [
        (f">= {minimum:g}", number >= minimum) if minimum is not None else None,
        (f"> {above:g}", number > above) if above is not None else None,
        (f"<= {maximum:g}", number <= maximum) if maximum is not None else None,
        (f"< {below:g}", number < below) if below is not None else None,
    ]
    told = [bound for bound in bounds if bound is not None]
    if not math.isfinite(number) or not all(holds for _, holds in told):
        limits = " and ".join(text for text, _ in told)
        raise ArgumentError(
            f"{name}={shown(value)}; expected a finite number{' ' if limits else ''}{limits}{why}."
        )
    return number


def _as_float(value: Any) -> float:
    """NaN for anything that is no real number."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.dtype != torch.bool:
        return math.nan if value.is_complex() else float(value.detach())
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return math.nan


def check_counts(
    name: str, value: Any, minimum: int = 1, *, empty: bool = True, length: int | None = None
) -> tuple[int, ...]:
    """
    :param str name: of the argument.
    :param value: a sequence of integers (a shape, widths of layers).
    :param int minimum: smallest entry allowed.
    :param bool empty: whether it may have no entry.
    :param int length: number of entries, if it is fixed.
    :returns: the entries as plain integers.
    :raises ArgumentError: for anything else.
    """
    is_sequence = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_sequence or (not empty and not value) or length not in (None, len(value)):
        kind = "" if empty else "non-empty "
        of = "" if length is None else f" of length {length}"
        raise ArgumentError(
            f"{name}={shown(value)}; expected a {kind}sequence of integers >= {minimum}{of}, "
            f"such as {(20,) * (length or 2)}."
        )
    return tuple(check_count(f"{name}[{i}]", entry, minimum) for i, entry in enumerate(value))


def check_flag(name: str, value: Any) -> bool:
    """
    :returns: ``value``.
    :raises ArgumentError: unless it is True or False.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={shown(value)}; expected True or False.")
    return value


def check_choice(name: str, value: Any, choices: Collection[Any]) -> Any:
    """
    :param choices: the values allowed.
    :returns: ``value``.
    :raises ArgumentError: unless it is one of them.
    """
    # by type too: True equals 1, and an unhashable value equals nothing
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        told = [repr(choice) for choice in choices]
        listed = told[0] if len(told) == 1 else f"{', '.join(told[:-1])} or {told[-1]}"
        raise ArgumentError(f"{name}={shown(value)}; expected {listed}.")
    return value


def check_callable(name: str, value: Any, expected: str) -> Callable[..., Any]:
    """
    :param str expected: what to pass, such as ``"a Pyro model: a function of the data"``.
    :returns: ``value``.
    :raises ArgumentError: unless it can be called.
    """
    if not callable(value):
        raise ArgumentError(f"{name}={shown(value)} cannot be called; expected {expected}.")
    return value


def check_instance(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
    """
    :param kinds: the classes allowed.
    :param str expected: what to pass, for the message.
    :returns: ``value``.
    :raises ArgumentError: unless it is an instance of one of them.
    """
    if not isinstance(value, kinds):
        what = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
        raise ArgumentError(f"{name} is {what}; expected {expected}.")
    return value


def check_text(name: str, value: Any, expected: str = "a text") -> str:
    """
    :returns: ``value``.
    :raises ArgumentError: unless it is a text.
    """
    return check_instance(name, value, str, expected)
