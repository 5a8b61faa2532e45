"""A fingerprint of a model's program, by which a guide that is loaded without it knows it again."""

from __future__ import annotations

import hashlib
import inspect
from functools import partial
from types import CodeType
from typing import Any

from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from torch import nn

__all__ = ["print_of_program", "unconditioned"]

_HOLDING = (ConditionMessenger, InitMessenger)
_PLAIN = (int, float, complex, str, bytes, type(None))
_SWITCHES = (bool, str, bytes, type(None))  # numbers may count what a method does
_MARKING = (InferConfigMessenger,)  # such as config_enumerate: neither hides nor adds a site


def unconditioned(model: Any) -> Any:
    """
    What values are held in, by ``poutine.condition`` or where a guide looks for its start.

    :param model: a Pyro model.
    :returns: the model without these handlers around it.
    """
    return _without(model, _HOLDING)


def print_of_program(model: Any) -> str | None:
    """
    A fingerprint of what a model does, the same in another process and elsewhere in a file.

    A function's is of its instructions, names, constants, defaults, and the plain values and
    functions that it closes over; that of an object of its ``forward`` or ``__call__``, and of the
    plain values among its attributes and its submodules'; that of a method of its object's switches
    and texts as well. Lists and dictionaries, which a run may change, and what these call otherwise
    are not looked at.

    :param model: a Pyro model.
    :returns: hexadecimal digits; None of what has no instructions of its own, or is within a
        handler that may hide sites.
    """
    bare = _without(model, (*_HOLDING, *_MARKING))
    if isinstance(getattr(bare, "func", None), partial):  # another handler, with the model in it
        return None
    digest = hashlib.sha256()
    if inspect.ismethod(bare):
        _take_attributes(bare.__self__, digest, _SWITCHES)
    elif not inspect.isfunction(bare):
        _take_attributes(bare, digest)
        bare = type(bare).forward if isinstance(bare, nn.Module) else type(bare).__call__
    return digest.hexdigest() if _take_function(bare, digest, set()) else None


def _without(model: Any, kinds: tuple[type, ...]) -> Any:
    while isinstance(wrapped := getattr(model, "func", None), partial):
        handler, *inner = wrapped.args or (None,)
        if not (isinstance(handler, kinds) and len(inner) == 1):
            break
        model = inner[0]
    return model


def _take_function(function: Any, digest: Any, seen: set[int]) -> bool:
    """Adds a function, and those that it closes over; False if it has no instructions."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    if id(function) in seen:
        return True
    seen.add(id(function))
    _take(code, digest)
    function = getattr(function, "__func__", function)
    by_name = sorted((function.__kwdefaults__ or {}).items())
    _take_value((function.__defaults__, *by_name), digest, seen)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # of a name that has no value yet
            continue
        _take_value(value, digest, seen)
    return True


def _take_value(value: Any, digest: Any, seen: set[int]) -> None:
    """Adds what is plain, what it is made of, and functions; nothing of anything else."""
    if isinstance(value, _PLAIN):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, tuple):
        digest.update(f"tuple of {len(value)}:".encode())
        for one in value:
            _take_value(one, digest, seen)
    elif isinstance(value, frozenset):  # in an order that each process has for itself
        plain = sorted(repr(one) for one in value if isinstance(one, _PLAIN))
        _take_value(tuple(plain), digest, seen)
    elif isinstance(value, partial):
        _take_value((value.func, value.args, *sorted(value.keywords.items())), digest, seen)
    elif inspect.isfunction(value) or inspect.ismethod(value):
        _take_function(value, digest, seen)


def _take_attributes(program: Any, digest: Any, kinds: tuple[type, ...] = _PLAIN) -> None:
    """Adds plain values that an object, or a module and those within it, goes by."""
    parts = program.modules() if isinstance(program, nn.Module) else [program]
    for part in parts:
        for name, value in sorted(getattr(part, "__dict__", {}).items()):
            if isinstance(value, kinds) and name != "training" and not name.startswith("_"):
                digest.update(f"{name}={value!r};".encode())


def _take(code: CodeType, digest: Any) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # of a function within
            _take(constant, digest)
        else:
            _take_value(constant, digest, set())
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    digest.update("\n".join(names).encode() + code.co_code)
