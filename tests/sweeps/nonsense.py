"""What the sweep passes where it does not belong, and when such a value belongs after all."""

from __future__ import annotations

import collections.abc as abc
import inspect
import math
import types
import typing
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor


class _Opaque:
    def __repr__(self) -> str:
        return "an object"


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A function of anything."""


#: made anew for each call, so that no callee can change what the next one gets
VALUES: dict[str, typing.Callable[[], Any]] = {
    "None": lambda: None,
    "a word": lambda: "abc",
    "an empty text": lambda: "",
    "a number as text": lambda: "3",
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "-0.5": lambda: -0.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "True": lambda: True,
    "an empty list": lambda: [],
    "a list of -1": lambda: [-1],
    "a list of words": lambda: ["a"],
    "a list of None": lambda: [None],
    "an empty dictionary": dict,
    "a dictionary": lambda: {"a": 1},
    "an object": _Opaque,
    "a class": lambda: int,
    "a function": lambda: _nothing,
    "a tensor of integers": lambda: torch.tensor([1, 2]),
    "a tensor with NaN": lambda: torch.tensor([1.0, math.nan]),
    "a complex tensor": lambda: torch.zeros(2, dtype=torch.complex64),
    "a tensor of no dimension": lambda: torch.tensor(0.5),
    "a tensor of four dimensions": lambda: torch.ones(2, 1, 3, 2),
    "an array": lambda: np.ones(3),
    "a NumPy float": lambda: np.float64(2.5),
    "beyond every integer": lambda: 10**400,
    "1j": lambda: 1j,
    "bytes": lambda: b"x",
    "a set": lambda: {1, 2},
}

#: counts that may be 0
NON_NEGATIVE = {"batch_dims", "index", "num_iterations", "seed"}
#: parameters that may be negative
SIGNED = {"start", "end", "score", "beta", "step"}
#: tensors that no constructor reads: looking at each entry would wait for the device at every step
UNREAD = {"noise", "scale", "z"}
#: parameters that may be any text
FREE_TEXT = {"function_name", "latents", "name", "noise_name", "promise", "value_name"}
#: what the annotation leaves open
OVERRIDES: dict[str, typing.Callable[[Any], bool]] = {
    "max_plate_nesting": lambda v: (
        isinstance(v, (int, float)) and (v == math.inf or (is_integer(v) and v >= 0))
    ),
    "guide": lambda v: isinstance(v, types.FunctionType),
    "model": lambda v: isinstance(v, types.FunctionType),
    "objective": lambda v: v is None,
    "example": lambda v: True,
    "dataset": lambda v: True,
    "jit_options": lambda v: v is None,  # Pyro's, refused but for their defaults
    "tail_adaptive_beta": lambda v: v == -1,
    "watch_folds": lambda v: is_integer(v) and v >= 0,  # 0 never looks
}


def is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def belongs(name: str, hint: Any, value: Any) -> bool:
    """Whether a call that takes ``value`` for the parameter ``name`` is right to do so."""
    if name in OVERRIDES:
        return OVERRIDES[name](value)
    return _fits(name, hint, value)


def _fits(name: str, hint: Any, value: Any) -> bool:
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if hint is None or hint is type(None):
        return value is None
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(name, one, value) for one in inner)
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if isinstance(hint, typing.TypeVar):
        return True
    if origin is abc.Callable or hint is abc.Callable:
        return callable(value)
    if origin in (abc.Sequence, list, tuple, abc.Iterable):
        return _fits_sequence(name, origin, inner, value)
    if origin in (abc.Mapping, dict):
        return isinstance(value, abc.Mapping) and all(
            _fits(name, inner[0], k) and _fits(name, inner[1], v) for k, v in value.items()
        )
    return _fits_class(name, origin or hint, value)


def _fits_sequence(name: str, origin: Any, inner: Any, value: Any) -> bool:
    kind = abc.Iterable if origin is abc.Iterable else abc.Sequence
    if isinstance(value, (str, bytes, Tensor, np.ndarray)) or not isinstance(value, kind):
        return False
    return all(_fits(name, inner[0], entry) for entry in value)


def _fits_class(name: str, kind: Any, value: Any) -> bool:
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        least = 0 if name in NON_NEGATIVE else 1
        return is_integer(value) and abs(value) < 2**63 and value >= least
    if kind is float:
        if isinstance(value, Tensor) and value.dim() == 0 and not value.is_complex():
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, Real) or abs(value) > 1e300:
            return False
        return math.isfinite(value) and (value >= 0 or name in SIGNED)
    if kind is str:
        return isinstance(value, str) and name in FREE_TEXT
    if kind is Tensor:
        if not isinstance(value, Tensor) or value.is_complex():
            return False
        return name in UNREAD or bool(value.isfinite().all())
    return isinstance(value, kind)
