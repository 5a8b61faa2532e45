"""A walk through what programs hold, name and read."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import os
import random
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_implicit.handlers.looks.kept_place import (
    CONTENTS_KEY,
    CONTEXT_KEY,
    GONE,
    LENGTH_KEY,
    MAPPING_TYPES,
    PLAIN_TYPES,
    SEQUENCE_TYPES,
    VALUE_TYPES,
    Place,
    as_bytes,
    contents,
)
from pyro_implicit.handlers.networks.network_places import network_places

__all__ = ["Look", "TooMuchToSee", "unseen"]

_MAX_ENTRIES_LOOKED_INTO = 100  # longer lists and dictionaries are compared as a whole
_MAX_ENTRIES_COMPARED = 10_000  # of a container at each step, which takes a tenth of a millisecond
_MAX_PLACES = 10_000  # they are looked at at each step, which takes milliseconds
_MAX_DEPTH = 6  # of functions in functions, and objects in objects
_COUNTER_OF_UNSEEN = itertools.count()  # gives what cannot be seen a value that no other look has
_SET_TYPES = (set, frozenset)
#: what names and attributes of classes may hold that is data, not code
_DATA_TYPES = (*VALUE_TYPES, *SEQUENCE_TYPES, *_SET_TYPES, *MAPPING_TYPES, bytearray, array)
#: Networks of these packages hold nothing that a step changes but what torch knows of.
_KNOWN_NETWORK_PREFIXES = ("torch.", "pyro.", "pyro_implicit.")
#: Their functions and objects are not the user's.
_LIBRARIES = {"torch", "pyro", "pyro_implicit", "numpy", *sys.stdlib_module_names}
#: PyTorch keeps them in each network; its tensors, layers and hooks are looked at by themselves.
_ATTRIBUTES_OF_ANY_MODULE = frozenset(nn.Module().__dict__)
#: They make, copy or show an object.
_METHODS_OUTSIDE_OF_STEPS = {
    "__init__",
    "__new__",
    "__post_init__",
    "__repr__",
    "__str__",
    "__reduce__",
    "__del__",
}
#: A function that uses one of these may read what its strings name.
_LOOKUPS_BY_STRING = {
    "modules",
    "import_module",
    "getattr",
    "attrgetter",
    "vars",
    "__dict__",
    "globals",
    "eval",
}


class TooMuchToSee(Exception):  # noqa: N818 (a signal within one call, never shown)
    """A program holds or names more than can be looked at before each step."""


class Look:
    """
    A walk through objects, each met once.

    :param names: that are looked for in the classes of objects, beside those of their methods.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.values: dict[str, Any] = {}
        self.places: list[Place] = []
        #: what any function reads by name
        self.names: set[str] = set(names)
        self._sought = tuple(names)
        self._seen: dict[int, Any] = {}  # and alive, so that no other object has its number
        self._placed: set[tuple[int, Any]] = set()

    def at(self, value: Any, name: str, depth: int = _MAX_DEPTH) -> None:
        """
        At a value, and what it holds.

        :param value: any object.
        :param str name: for messages.
        :param int depth: how many objects further.
        """
        if isinstance(value, PLAIN_TYPES):
            self.values[name] = value
            return
        if isinstance(value, Tensor):
            self.values[f"the tensor {name}"] = _written(value)
            if not value.requires_grad:  # until somebody asks for its gradient
                self._place(f"{name}.requires_grad", value, "requires_grad", False)
        if id(value) in self._seen or depth < 0 or isinstance(value, Tensor):
            return
        self._seen[id(value)] = value
        self._at_numbers(value, name)
        if isinstance(value, (np.ndarray, bytearray, array)):
            self._at_array(value, name)
        elif isinstance(value, (*SEQUENCE_TYPES, *_SET_TYPES, tuple, *MAPPING_TYPES)):
            self._at_container(value, name, depth)
        elif isinstance(value, nn.Module):
            self._at_module(value, name)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.at(part, name, depth - 1)
        elif isinstance(value, weakref.ref):
            self.at(value(), name, depth)
        elif isinstance(value, ContextVar):
            self._entry(value, CONTEXT_KEY, value.get(GONE), name, depth)
        elif inspect.ismethod(value):
            own = value.__self__
            self.at(own, name, depth)
            self._at_function(value.__func__, depth)
            if not isinstance(own, type):
                self._at_class(own, name or type(own).__name__, _names_of(value.__func__))
        elif inspect.isfunction(value):
            self._at_function(value, depth)
        elif isinstance(value, (type, ModuleType)):
            self._at_names(value, name, depth)
        elif _has_attributes(value):
            self._at_object(value, name or type(value).__name__, depth)

    def _place(self, name: str, container: Any, key: Any, value: Any) -> None:
        if (id(container), key) not in self._placed:
            if len(self.places) >= _MAX_PLACES:
                raise TooMuchToSee
            self._placed.add((id(container), key))
            self.places.append(Place(name, container, key, value))

    def _at_array(self, value: np.ndarray | bytearray | array[Any], name: str) -> None:
        """At the numbers of a short array, which may be written."""
        if (value.size if isinstance(value, np.ndarray) else len(value)) <= _MAX_ENTRIES_COMPARED:
            kept = as_bytes(value)
            self._place(f"an entry of {name}", value, CONTENTS_KEY, kept)
            self.values[f"an entry of {name}"] = hash(kept)

    def _at_container(self, value: Any, name: str, depth: int) -> None:
        """At each entry of a short one; of a long one, and of a set, at whether they are others."""
        if isinstance(value, _SET_TYPES) or len(value) > _MAX_ENTRIES_LOOKED_INTO:
            if not isinstance(value, (tuple, frozenset)) and len(value) <= _MAX_ENTRIES_COMPARED:
                kept = value.copy()
                self._place(f"an entry of {name}", value, CONTENTS_KEY, kept)
                plain = [one for one in _flat(value) if isinstance(one, PLAIN_TYPES)]
                self.values[f"an entry of {name}"] = hash(repr(plain))
            return
        if not isinstance(value, tuple):
            self._place(f"the length of {name}", value, LENGTH_KEY, len(value))
        for key, entry in value.items() if isinstance(value, MAPPING_TYPES) else enumerate(value):
            self._entry(value, key, entry, f"{name}[{key!r}]", depth - 1)

    def _at_numbers(self, value: Any, name: str) -> None:
        """At what gives another number each time it is asked."""
        if isinstance(value, np.random.Generator):
            self.values[f"the random numbers of {name}"] = repr(value.bit_generator.state)
        elif isinstance(value, np.random.RandomState):
            state: Any = value.get_state(legacy=False)["state"]
            self.values[f"the random numbers of {name}"] = (
                hash(state["key"].tobytes()),
                state["pos"],
            )
        elif isinstance(value, torch.Generator):
            self.values[f"the random numbers of {name}"] = value.get_state().tolist()
        elif isinstance(value, random.Random):
            self.values[f"the random numbers of {name}"] = hash(value.getstate())
        elif isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            self.values[f"the iterator {name}"] = unseen()  # nobody can tell

    def _entry(self, container: Any, key: Any, value: Any, name: str, depth: int) -> None:
        if not isinstance(container, tuple):  # of which no entry can be replaced
            self._place(name, container, key, value)
        self.at(value, name, depth)

    def _at_object(self, value: Any, where: str, depth: int) -> None:
        if value is os.environ:
            self._at_container(value._data, "os.environ", depth)  # type: ignore[attr-defined]
            return
        held = _attributes(value)
        container = vars(value) if hasattr(value, "__dict__") else value
        for key, entry in held.items():
            self._entry(container, key, entry, f"{where}.{key}", depth - 1)
        if isinstance(container, dict) and not _is_library(type(value)):
            self._place(f"the attributes of {where}", container, LENGTH_KEY, len(container))
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if inspect.isfunction(call):
            self._at_function(call, depth)
            self._at_class(value, where, _names_of(call))
        if not _is_library(type(value)):
            self._at_class(value, where, (*self._sought, *_called_by_signs(type(value))))

    def _at_class(self, value: Any, where: str, names: Iterable[str]) -> None:
        """At what a program may read of an object's classes, or find in their place one day."""
        own = getattr(value, "__dict__", {})
        kinds = [kind for kind in type(value).__mro__ if not _is_ours(kind)]
        for name in dict.fromkeys(names):
            found = [kind for kind in kinds if name in vars(kind)]
            for kind in found:
                self._entry_of_class(kind, name, where)
                self._at_helper(value, where, vars(kind)[name])
            if found and isinstance(vars(found[0])[name], VALUE_TYPES):
                before = kinds[: kinds.index(found[0])]
                for held in (*before, *([] if name in own else [own])):
                    self._place(f"{where}.{name}", held, name, GONE)

    def _entry_of_class(self, kind: type, name: str, where: str) -> None:
        value = vars(kind)[name]
        self._place(f"{where}.{name}", kind, name, value)
        if isinstance(value, _DATA_TYPES):
            self.at(value, f"{where}.{name}", 1)
        elif not _is_library(type(value)):  # what has code of its own for being read
            self.at(value, f"{where}.{name}", 2)

    def _at_helper(self, value: Any, where: str, helper: Any) -> None:
        """At the code of what a method calls of its own object."""
        helper = _plainly(helper)
        if not inspect.isfunction(helper) or id(helper) in self._seen:
            return
        self._seen[id(helper)] = helper
        self._at_function(helper, _MAX_DEPTH - 1)
        self._at_class(value, where, _names_of(helper))

    def _at_module(self, module: nn.Module, name: str) -> None:
        top = name or type(module).__name__
        for path, part in module.named_modules():
            where = f"{top}.{path}" if path else top
            if not all(map(_is_ours, type(part).__mro__)):
                self._at_own_module(part, where)
            for key, value in part.__dict__.items():
                if isinstance(value, PLAIN_TYPES):
                    self.values[f"{where}.{key}"] = value
                if isinstance(value, Tensor):
                    self.values[f"the tensor {where}.{key}"] = _written(value)
            for key, buffer in part._buffers.items():
                if buffer is not None:
                    written = id(buffer), buffer._version
                    self.values[f"the buffer {where}.{key}"] = written
            for place in network_places(part, where):
                self._place(*place)

    def _at_own_module(self, part: nn.Module, where: str) -> None:
        """At what a user's own network holds beside tensors, and what its forward reads."""
        for key, value in part.__dict__.items():
            if key == "_pyro_samples" or not (
                key in _ATTRIBUTES_OF_ANY_MODULE or key.startswith("_pyro")
            ):
                self._entry(part.__dict__, key, value, f"{where}.{key}", _MAX_DEPTH - 1)
        forward = inspect.unwrap(type(part).forward)
        if inspect.isfunction(forward):
            self._at_function(forward, _MAX_DEPTH - 1)
            self._at_class(part, where, _names_of(forward))

    def _at_function(self, function: Callable[..., Any], depth: int) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if inspect.isfunction(wrapped) and depth >= 0:  # what decorates it has a closure, too
            self._at_function(wrapped, depth)
        code = getattr(function, "__code__", None)
        if code is None:
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            value = contents(cell)
            if value is not GONE:
                self._entry(cell, None, value, name, depth - 1)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.at(default, f"a default of {function.__name__}", depth - 1)
        self._at_attributes(function, depth)
        scope, names = function.__globals__, _names(code)
        if function is not os.getenv and _is_of_library(scope.get("__name__")):
            return  # which none of a user's names is in
        self.names.update(names)
        for name in names:
            value = scope.get(name, sys.modules.get(name, GONE))  # imported within, maybe
            if isinstance(value, (type, ModuleType)):
                self._at_names(value, name, depth - 1, names)
            elif value is not GONE:
                self._entry(scope, name, value, name, depth - 1)

    def _at_attributes(self, function: Callable[..., Any], depth: int) -> None:
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            held_now = getattr(function, name, None)
            self._place(f"{function.__name__}.{name}", function, name, held_now)
        held = function.__dict__
        for key, value in held.items():
            if key != "__wrapped__":
                self._entry(held, key, value, f"{function.__name__}.{key}", depth - 1)

    def _at_names(
        self, owner: type | ModuleType, where: str, depth: int, names: Iterable[str] = ()
    ) -> None:
        """At what a function may read from a module or class by their name."""
        names, owners = tuple(self._sought or names), [owner]
        if isinstance(owner, type):
            owners += [kind for kind in owner.__mro__[1:] if not _is_ours(kind)]
        sought = frozenset(names)  # of a large library, thousands of names in hundreds of modules
        there = {name for one in owners for name in vars(one).keys() & sought}
        for name in filter(there.__contains__, names) if there else ():
            found = [one for one in owners if name in vars(one)]
            for one in found:
                self._entry_by_name(one, name, f"{where}.{name}", depth)
            for one in owners[: owners.index(found[0])]:
                self._place(f"{where}.{name}", one, name, GONE)
        if owner is os and "getenv" in names:
            self.at(os.environ, "os.environ", 1)
        if isinstance(owner, type) and not _is_library(type(owner)):
            self._at_class(owner, where, names)  # whose class it is

    def _entry_by_name(self, owner: type | ModuleType, name: str, place: str, depth: int) -> None:
        value = vars(owner)[name]
        if value is os.environ or isinstance(value, _DATA_TYPES):
            self._entry(owner, name, value, place, max(depth, 1))
        elif not _is_library(owner):
            self._place(place, owner, name, value)
            self.at(_plainly(value), place, depth - 1)


def unseen() -> int:
    """
    Stands in the place of what cannot be seen.

    :returns: a number that no other call gives.
    """
    return next(_COUNTER_OF_UNSEEN)


def _plainly(value: Any) -> Any:
    """The function behind a static method, a method of a class or a property."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _called_by_signs(kind: type) -> list[str]:
    """Methods of a user's class that no name calls: of operators, entries and attributes."""
    kinds = [one for one in kind.__mro__ if not _is_library(one)]
    found = [
        name for one in kinds for name, value in vars(one).items() if inspect.isfunction(value)
    ]
    return [
        name for name in found if name.startswith("__") and name not in _METHODS_OUTSIDE_OF_STEPS
    ]


def _names_of(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else _names(code)


def _is_library(owner: type | ModuleType) -> bool:
    """Whether a module, or that of a class, belongs to a package whose code no user changes."""
    return _is_of_library(owner.__name__ if isinstance(owner, ModuleType) else owner.__module__)


def _is_of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _names(code: CodeType) -> tuple[str, ...]:
    """Names that a function reads, those of functions and comprehensions inside of it as well."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    texts = [one for one in code.co_consts if isinstance(one, str) and one.isidentifier()]
    read = texts if _LOOKUPS_BY_STRING.intersection(code.co_names) else []
    return (*code.co_names, *read, *(name for one in inner for name in _names(one)))


def _written(tensor: Tensor) -> Any:
    """What tells whether another tensor is there, or this one was written into."""
    return id(tensor), None if tensor.is_inference() else tensor._version


def _is_ours(kind: type) -> bool:
    """Whether a class is of Python, or of a package whose code a step does not change."""
    return kind is object or (kind.__module__ or "").startswith(_KNOWN_NETWORK_PREFIXES)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or any(map(_slots, type(value).__mro__))


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds, in its ``__dict__`` or its ``__slots__``."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    held = {name: getattr(value, name, GONE) for name in slots}
    return {k: v for k, v in held.items() if v is not GONE} | getattr(value, "__dict__", {})


def _slots(kind: type) -> tuple[str, ...]:
    if kind.__module__ == "builtins":
        return ()
    names = vars(kind).get("__slots__", ())
    found = (names,) if isinstance(names, str) else tuple(names)
    return tuple(_mangled(kind, n) for n in found if n not in ("__dict__", "__weakref__"))


def _mangled(kind: type, name: str) -> str:
    """The name by which an attribute is kept, as Python has it for two underscores."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private else name


def _flat(value: Any) -> list[Any]:
    """Keys and entries; those of a set in an order that does not depend on the process."""
    if isinstance(value, MAPPING_TYPES):
        return [*value.keys(), *value.values()]
    return sorted(value, key=repr) if isinstance(value, _SET_TYPES) else [*value]
