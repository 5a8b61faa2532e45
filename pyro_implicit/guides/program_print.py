"""A fingerprint of a model's program, by which a guide that is loaded without it knows it again."""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import inspect
from collections.abc import Iterator
from enum import Enum
from functools import cached_property, partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.nn import PyroModule
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from torch import nn

__all__ = ["print_of_program", "unconditioned"]

_HOLDING = (ConditionMessenger, InitMessenger)
_PLAIN = (int, float, complex, str, bytes, type(None), np.generic, Enum)
_SWITCHES = (bool, str, bytes, type(None), Enum)  # numbers may count what a method does
_MADE_OF_PLAIN = (tuple, frozenset, partial, FunctionType)
_OWN_NAMES = frozenset({*vars(nn.Module()), *vars(PyroModule()), "training"})
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
    plain values, tuples, members of enums, frozen dataclasses and functions among its attributes
    and its submodules'; that of a method of its object's attributes, but for numbers. Attributes
    and names that ``forward`` or ``__call__``, and the methods and functions that these name,
    assign to, as where runs are counted, lists and dictionaries, which a run may change, and what
    these call otherwise are not looked at.

    :param model: a Pyro model.
    :returns: hexadecimal digits; None of what has no instructions of its own, of values without
        an end, or within a handler that may hide sites.
    """
    bare = _without(model, (*_HOLDING, *_MARKING))
    if isinstance(getattr(bare, "func", None), partial):  # another handler, with the model in it
        return None
    digest = hashlib.sha256()
    try:
        return digest.hexdigest() if _take_program(bare, digest) else None
    except RecursionError:
        return None


def _take_program(bare: Any, digest: Any) -> bool:
    if inspect.ismethod(bare):
        _take_attributes(bare.__self__, digest, bare.__name__, _SWITCHES)
    elif not inspect.isfunction(bare):
        _take_attributes(bare, digest, "forward" if isinstance(bare, nn.Module) else "__call__")
        bare = type(bare).forward if isinstance(bare, nn.Module) else type(bare).__call__
    return _take_function(bare, digest, _Taken(bare))


def _without(model: Any, kinds: tuple[type, ...]) -> Any:
    while isinstance(wrapped := getattr(model, "func", None), partial):
        handler, *inner = wrapped.args or (None,)
        if not (isinstance(handler, kinds) and len(inner) == 1):
            break
        model = inner[0]
    return model


class _Taken:
    """What is known on the way: functions that were added, and cells that are written."""

    def __init__(self, program: Any) -> None:
        self.places: dict[int, int] = {}
        self.written = set(_cells_written(program, set()))


def _take_function(function: Any, digest: Any, seen: _Taken) -> bool:
    """Adds a function, and those that it closes over; False if it has no instructions."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    if id(function) in seen.places:
        digest.update(f"function {seen.places[id(function)]} again;".encode())
        return True
    seen.places[id(function)] = len(seen.places)
    _take(code, digest)
    function = getattr(function, "__func__", function)
    by_name = sorted((function.__kwdefaults__ or {}).items())
    _take_value((function.__defaults__, *by_name), digest, seen)
    for cell, value in _cells(function):
        if id(cell) not in seen.written:
            _take_value(value, digest, seen)
    return True


def _cells(function: Any) -> Iterator[tuple[Any, Any]]:
    """What a function closes over, with its values."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell, cell.cell_contents
        except ValueError:  # of a name that has no value yet
            continue


def _cells_written(function: Any, seen: set[int]) -> Iterator[int]:
    """Cells that a function, or one that it closes over, assigns to."""
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function) or id(function) in seen:
        return
    seen.add(id(function))
    names = set(_written("STORE_DEREF", function.__code__))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name in names:
            yield id(cell)
    for _, value in _cells(function):
        yield from _cells_written(value, seen)


def _written(operation: str, code: CodeType) -> Iterator[str]:
    """Names that a program writes by some operation, in functions within it too."""
    for one in dis.get_instructions(code):
        if one.opname == operation:
            yield one.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _written(operation, constant)


def _take_value(value: Any, digest: Any, seen: _Taken) -> None:
    """Adds what is plain, what it is made of, and functions; nothing of anything else."""
    if isinstance(value, _PLAIN):
        digest.update(f"{_text(value)};".encode())
    elif isinstance(value, tuple):
        digest.update(f"tuple of {len(value)}:".encode())
        for one in value:
            _take_value(one, digest, seen)
    elif isinstance(value, frozenset):  # in an order that each process has for itself
        _take_value(_text(value), digest, seen)
    elif isinstance(value, partial):
        _take_value((value.func, value.args, *sorted(value.keywords.items())), digest, seen)
    elif _is_frozen(value):
        _take_value(_fields(value), digest, seen)
    elif inspect.isfunction(value) or inspect.ismethod(value):
        _take_function(value, digest, seen)


def _is_frozen(value: Any) -> bool:
    """Whether it is an object of a frozen dataclass, whose fields a run cannot assign to."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _fields(value: Any) -> tuple[tuple[str, Any], ...]:
    """Names and values of all that a frozen object holds, cached or in slots too."""
    held = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    return tuple(sorted((held | getattr(value, "__dict__", {})).items()))


def _text(value: Any) -> str:
    """The same in each process, of what is plain and of what is made of it."""
    if isinstance(value, Enum):  # whose value may be anything
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)  # of any length, which decimal digits are not
    if isinstance(value, frozenset):  # in an order that each process has for itself
        return f"frozenset({sorted(map(_text, value))})"
    if isinstance(value, tuple):
        return f"tuple({list(map(_text, value))})"
    if isinstance(value, (str, bytes)):  # of a class of its own, too, which may show an address
        return str.__repr__(value) if isinstance(value, str) else bytes.__repr__(value)
    return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__


def _take_attributes(
    program: Any, digest: Any, entry: str, kinds: tuple[type, ...] = _PLAIN
) -> None:
    """Adds plain values that an object, or a module and those within it, goes by."""
    is_module = isinstance(program, nn.Module)
    parts = program.named_modules() if is_module else [("", program)]
    asked = _reached(type(program), [entry])[0]  # of its parts, too, perhaps
    for place, part in parts:
        digest.update(f"{place}: {type(part).__qualname__};".encode())
        written = _reached(type(part), ["forward", *asked] if is_module else [entry])[1]
        for name, value in sorted(getattr(part, "__dict__", {}).items()):
            if name in written or name in _OWN_NAMES or name.startswith("_pyro"):
                continue
            if isinstance(value, (*kinds, *_MADE_OF_PLAIN)) or _is_frozen(value):
                digest.update(f"{name}=".encode())
                _take_value(value, digest, _Taken(None))


def _reached(kind: type, entries: list[str]) -> tuple[set[str], set[str]]:
    """
    Names that methods of a class ask for, and attributes that they assign to.

    They are those of the entries, and of what these name: methods, properties and what is cached.
    """
    asked, written, left = set(entries), set[str](), list(entries)
    while left:
        name = left.pop()
        for code in _codes_of(inspect.getattr_static(kind, name, None)):
            written.update(_written("STORE_ATTR", code))
            new = set(_names_in(code)) - asked
            asked |= new
            left += new
        if isinstance(inspect.getattr_static(kind, name, None), cached_property):
            written.add(name)  # which is kept once it was asked for
    return asked, written


def _codes_of(member: Any) -> list[CodeType]:
    """The instructions of a method, of a property, or of what is cached."""
    functions = [member]
    if isinstance(member, property):
        functions = [member.fget, member.fset]
    elif isinstance(member, cached_property):
        functions = [member.func]
    bare = [inspect.unwrap(one) for one in functions if callable(one)]
    found = [getattr(one, "__code__", None) for one in bare]
    return [code for code in found if isinstance(code, CodeType)]


def _names_in(code: CodeType) -> Iterator[str]:
    """Names that a program asks for, in functions within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _take(code: CodeType, digest: Any) -> None:
    for constant in _constants(code):
        if isinstance(constant, CodeType):  # of a function within
            _take(constant, digest)
        else:
            _take_value(constant, digest, _Taken(None))
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    digest.update("\n".join(names).encode() + code.co_code)


def _constants(code: CodeType) -> tuple[Any, ...]:
    """What a program names, but for its docstring, or the None in its place before Python 3.14."""
    flag = getattr(inspect, "CO_HAS_DOCSTRING", None)
    is_told = (
        isinstance(next(iter(code.co_consts), 0), str | None)
        if flag is None
        else bool(code.co_flags & flag)
    )
    return code.co_consts[1:] if is_told and not code.co_name.startswith("<") else code.co_consts
