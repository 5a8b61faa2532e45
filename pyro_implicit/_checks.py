"""Checks of arguments: one home for every public entry of the package."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ShapeError, StateError

__all__ = [
    "check_callable",
    "check_choice",
    "check_count",
    "check_counts",
    "check_flag",
    "check_guide",
    "check_instance",
    "check_model",
    "check_names",
    "check_number",
    "check_seed",
    "check_shape",
    "check_state",
    "check_tensor",
    "check_tensors",
    "check_text",
    "shown",
]

T = TypeVar("T")

_MAX_INT64 = 2**63 - 1  # what an integer of torch holds at most


def shown(value: Any, width: int = 60) -> str:
    """
    Shows a value in an error message.

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
    An integer within bounds as a plain one, or an error.

    :param str name: of the argument.
    :param value: an integer, of NumPy's kinds too; neither a flag nor a float.
    :param int minimum: smallest value allowed.
    :param int maximum: largest value allowed, if any.
    :param str why: appended to the message, such as ``" (the number of draws)"``.
    :returns: ``value`` as a plain integer.
    :raises ArgumentError: for anything else.
    """
    most = _MAX_INT64 if maximum is None else maximum
    if not _is_integer(value) or not minimum <= value <= most:
        limit = "" if maximum is None else f" and <= {maximum}"
        raise ArgumentError(f"{name}={shown(value)}; expected an integer >= {minimum}{limit}{why}.")
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_num_samples(call: str, value: Any) -> int:
    """
    A number of draws, or an error that says how to give one.

    :param str call: the call up to its options, such as ``"predict(model, guide, x"``.
    :param value: a positive integer; None if it was left out.
    :returns: ``value`` as a plain integer.
    :raises ArgumentError: for anything else.
    """
    if value is None:
        raise ArgumentError(f"the number of draws is missing. Write {call}, num_samples=500).")
    return check_count("num_samples", value)


def check_seed(name: str, value: Any) -> int:
    """
    A seed as a plain integer, or an error.

    :param value: an integer from 0 to ``2**32 - 1``, which seeds torch, NumPy and scikit-learn.
    :returns: ``value`` as a plain integer.
    :raises ArgumentError: for anything else.
    """
    return check_count(name, value, 0, 2**32 - 1, " (a seed)")


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    finite: bool = True,
    why: str = "",
) -> float:
    """
    A real number within bounds as a plain float, or an error.

    :param str name: of the argument.
    :param value: a number, of NumPy's kinds or a tensor of one element too; no flag.
    :param float minimum: smallest value allowed.
    :param float above: what it must exceed.
    :param float maximum: largest value allowed.
    :param float below: what it must stay below.
    :param bool finite: whether NaN and infinities are refused.
    :param str why: appended to the message.
    :returns: ``value`` as a plain float.
    :raises ArgumentError: for anything else.
    """
    number = _as_float(value)
    x = math.nan if number is None else number
    bounds = [
        (f">= {minimum:g}", x >= minimum) if minimum is not None else None,
        (f"> {above:g}", x > above) if above is not None else None,
        (f"<= {maximum:g}", x <= maximum) if maximum is not None else None,
        (f"< {below:g}", x < below) if below is not None else None,
    ]
    notes = [bound for bound in bounds if bound is not None]
    wrong = not math.isfinite(x) if finite else number is None
    if wrong or not all(holds for _, holds in notes):
        limits = "".join(f" {'and ' if i else ''}{text}" for i, (text, _) in enumerate(notes))
        kind = "a finite number" if finite else "a number"
        raise ArgumentError(f"{name}={shown(value)}; expected {kind}{limits}{why}.")
    return x


def _as_float(value: Any) -> float | None:
    """None for anything that is no real number."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.dtype != torch.bool:
        return None if value.is_complex() else float(value.detach())
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # an integer beyond every float
            return math.inf
    return None


def check_counts(
    name: str, value: Any, minimum: int = 1, *, empty: bool = True, length: int | None = None
) -> tuple[int, ...]:
    """
    Several integers as a tuple, or an error.

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


def check_shape(name: str, value: Any) -> torch.Size:
    """
    A shape as a ``torch.Size``, or an error.

    :param value: a sequence of sizes, such as ``torch.Size([3])``; for one size an integer too.
    :returns: it as a ``torch.Size``.
    :raises ArgumentError: for anything else.
    """
    return torch.Size(check_counts(name, (value,) if _is_integer(value) else value, 0))


def check_flag(name: str, value: Any) -> bool:
    """
    Checks that an argument is True or False.

    :returns: ``value``.
    :raises ArgumentError: unless it is True or False.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={shown(value)}; expected True or False.")
    return value


def check_choice(name: str, value: Any, choices: Collection[T], why: str = "") -> T:
    """
    Checks that an argument is one of a few values.

    :param choices: the values allowed.
    :param str why: appended to the message, such as ``", or a guide"``.
    :returns: ``value``.
    :raises ArgumentError: unless it is one of them.
    """
    # by type too: True equals 1, and an unhashable value equals nothing
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        quoted = [repr(choice) for choice in choices]
        listed = " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
        raise ArgumentError(f"{name}={shown(value)}; expected {listed}{why}.")
    chosen: T = value
    return chosen


def check_callable(name: str, value: Any, expected: str) -> Callable[..., Any]:
    """
    Checks that an argument can be called.

    :param str expected: what to pass, such as ``"a Pyro model: a function of the data"``.
    :returns: ``value``.
    :raises ArgumentError: unless it can be called.
    """
    if not callable(value):
        raise ArgumentError(f"{name}={shown(value)} cannot be called; expected {expected}.")
    called: Callable[..., Any] = value
    return called


def check_instance(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
    """
    Checks that an argument is an instance of some class.

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
    Checks that an argument is a text.

    :returns: ``value``.
    :raises ArgumentError: unless it is a text.
    """
    text: str = check_instance(name, value, str, expected)
    return text


def check_tensor(
    name: str, value: Any, expected: str = "a tensor", *, dim: int | None = None
) -> Tensor:
    """
    Checks that an argument is a finite tensor of real numbers.

    :param value: a tensor of real numbers; no flags.
    :param str expected: what to pass, with its shape, for the message.
    :param int dim: smallest number of dimensions.
    :returns: ``value``.
    :raises ArgumentError: for anything else, and for entries that are NaN or infinite.
    :raises ShapeError: for fewer dimensions.
    """
    tensor: Tensor = check_instance(name, value, Tensor, expected)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ArgumentError(f"{name} is of type {tensor.dtype}; expected {expected}, of numbers.")
    if dim is not None and tensor.dim() < dim:
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; expected {expected}.")
    if tensor.is_floating_point() and not bool(tensor.detach().isfinite().all()):
        raise ArgumentError(f"{name} has entries that are NaN or infinite; expected {expected}.")
    return tensor


def check_state(owner: object, state: Any) -> Mapping[str, Any]:
    """
    Checks that a saved state is a dictionary by name.

    :param owner: what the state is loaded into.
    :returns: ``state``.
    :raises StateError: unless it is a dictionary by name.
    """
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        kind = owner if isinstance(owner, type) else type(owner)
        raise StateError(
            f"not a state of {kind.__name__}: found {shown(state)}; expected what its state_dict() "
            "returned."
        )
    return state


def check_model(value: Any, name: str = "model") -> Callable[..., Any]:
    """
    Checks that something can be called as a model.

    :returns: ``value``.
    :raises ArgumentError: unless it can be called as a model, as no class can.
    """
    return _check_program(
        name, value, "a Pyro model: a function of the data with pyro.sample statements"
    )


def check_guide(value: Any, name: str = "guide") -> Callable[..., Any]:
    """
    Checks that something can be called as a guide.

    :returns: ``value``.
    :raises ArgumentError: unless it can be called as a guide, as no class can.
    """
    is_data = hasattr(value, "shape") or value is None
    place = ", between the model and its arguments" if name == "guide" and is_data else ""
    return _check_program(name, value, f"a guide{place}, such as HyperNetworkGuide(model)")


def _check_program(name: str, value: Any, expected: str) -> Callable[..., Any]:
    if isinstance(value, type):
        raise ArgumentError(
            f"{name} is the class {value.__name__}; expected an instance of it: {expected}."
        )
    return check_callable(name, value, expected)


def check_tensors(name: str, value: Any, expected: str, **limits: Any) -> Mapping[str, Tensor]:
    """
    Checks a dictionary of tensors by name, each as :func:`check_tensor` does.

    :param value: tensors by name.
    :param str expected: what to pass, for the message.
    :param limits: those of :func:`check_tensor`.
    :returns: ``value``.
    :raises ArgumentError: for anything else.
    :raises ShapeError: for a tensor of fewer dimensions than asked for.
    """
    tensors: Mapping[str, Tensor] = check_instance(name, value, Mapping, expected)
    check_names(name, list(tensors))
    for key, entry in tensors.items():
        check_tensor(f"{name}[{key!r}]", entry, expected, **limits)
    return tensors


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """
    Several names as a tuple of texts, or an error.

    :param value: several texts; not one text, whose letters nobody means.
    :returns: them in their order.
    :raises ArgumentError: for anything else.
    """
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Tensor, Mapping))
    several = several and getattr(value, "ndim", 1) == 1  # an array of numpy may be one number
    names = tuple(value) if several else ()
    if not several or not all(isinstance(one, str) for one in names):
        raise ArgumentError(f"{name}={shown(value)}; expected several names, such as ['y'].")
    return names
