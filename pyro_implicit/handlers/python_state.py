"""What a program keeps in Python from one call to the next, as far as it can be seen."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pyro_implicit._random import read_random_state

__all__ = ["PLAIN", "PythonState", "python_state"]

#: what has a value and nothing else
PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST = 100  # entries of a list or dictionary that are looked into
_LONGEST = 10_000  # entries that are compared at each step, in a tenth of a millisecond
_DEEP = 4  # functions in functions, objects in objects
_GONE = object()
_LOOKS = itertools.count()
_LENGTH, _CONTENTS = object(), object()  # in the place of a key
_SEQUENCES, _SETS = (list, deque), (set, frozenset)
#: networks of these packages hold nothing that a step changes but what torch knows of
_OURS = ("torch.", "pyro.", "pyro_implicit.")
#: what PyTorch keeps in each network, whose tensors, layers and hooks are looked at by themselves
_OF_MODULES = frozenset(nn.Module().__dict__)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Place(NamedTuple):
    """Where an object is kept: an entry of a container, or the contents of a cell."""

    name: str
    container: Any
    key: Any
    value: Any

    def now(self) -> Any:
        """What is there now."""
        container, key = self.container, self.key
        if key is _LENGTH:
            return len(container)
        if isinstance(container, dict):
            return container.get(key, _GONE)
        if isinstance(container, _SEQUENCES):
            return container[key] if key < len(container) else _GONE
        if isinstance(container, (type, ModuleType)):
            return vars(container).get(key, _GONE)
        if isinstance(container, CellType):
            return _contents(container)
        return getattr(container, key, _GONE)

    def is_replaced(self) -> bool:
        """Whether something else is there now."""
        if self.key is _CONTENTS:
            return not _same_contents(self.container, self.value)
        now = self.now()
        return now is not self.value and not _is_equal(now, self.value)


@dataclass(frozen=True)
class PythonState:
    """
    What programs keep, by where it is.

    :param values: plain values and versions of buffers, by a name for messages.
    :param places: all that was met on the way, tensors and arrays among it.
    """

    values: dict[str, Any]
    places: list[_Place] = field(default_factory=list)

    def changes(self, later: PythonState) -> str:
        """
        Names what is not as it was.

        :param PythonState later: of the same programs.
        :returns: the first change in words, or an empty text.
        """
        for name in self.values.keys() | later.values.keys():
            one, other = self.values.get(name), later.values.get(name)
            if repr(one) != repr(other):
                return name
        return ""

    def replaced(self) -> str:
        """
        Names what was replaced since by something else; fast, to be asked at each step.

        :returns: its name, or an empty text.
        """
        return next((place.name for place in self.places if place.is_replaced()), "")


def python_state(*programs: Any) -> PythonState:
    """
    Reads what models and guides keep: attributes, closures, globals that they name, buffers.

    Plain values, and lists and dictionaries of them, are read, and of buffers whether they were
    written; so is whether Python, NumPy or a generator that is held drew random numbers. An
    iterator that is held counts as changed.

    :param programs: callables.
    :returns: what was read.
    """
    look = _Look()
    for program in programs:
        try:
            look.at(program, "", _DEEP)
        except Exception:  # of attributes that run a user's code
            look.values["what cannot be looked at"] = next(_LOOKS)
    state = read_random_state()
    _, keys, *rest = state["numpy"]
    look.values["the random numbers of Python"] = hash(state["random"])
    look.values["the random numbers of NumPy"] = hash(keys.tobytes()), *rest
    return PythonState(look.values, look.places)


class _Look:
    """A walk through objects, each met once."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: list[_Place] = []
        self._seen: set[int] = set()

    def at(self, value: Any, name: str, depth: int) -> None:
        """At a value, and what it holds."""
        if isinstance(value, PLAIN):
            self.values[name] = value
            return
        if isinstance(value, Tensor):
            self.values[f"the tensor {name}"] = _written(value)
        if id(value) in self._seen or depth < 0 or isinstance(value, (Tensor, np.ndarray)):
            return
        self._seen.add(id(value))
        self._at_numbers(value, name)
        if isinstance(value, (*_SEQUENCES, *_SETS, tuple, dict)):
            self._at_container(value, name, depth)
        elif isinstance(value, nn.Module):
            self._at_module(value, name)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.at(part, name, depth - 1)
        elif inspect.ismethod(value):
            own = value.__self__
            self.at(own, name, depth)
            self._at_function(value.__func__, depth)
            if not isinstance(own, type):
                self._at_class(own, name or type(own).__name__, value.__func__)
        elif inspect.isfunction(value):
            self._at_function(value, depth)
        elif not isinstance(value, (type, ModuleType)) and _has_attributes(value):
            self._at_object(value, name or type(value).__name__, depth)

    def _at_container(self, value: Any, name: str, depth: int) -> None:
        """At each entry of a short one; of a long one, and of a set, at whether they are others."""
        if isinstance(value, _SETS) or len(value) > _MOST:
            if not isinstance(value, (tuple, frozenset)) and len(value) <= _LONGEST:
                kept = value.copy()
                self.places.append(_Place(f"an entry of {name}", value, _CONTENTS, kept))
                plain = [one for one in _flat(value) if isinstance(one, PLAIN)]
                self.values[f"an entry of {name}"] = hash(repr(plain))
            return
        if not isinstance(value, tuple):
            self.places.append(_Place(f"the length of {name}", value, _LENGTH, len(value)))
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
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
            self.values[f"the iterator {name}"] = next(_LOOKS)  # nobody can tell

    def _entry(self, container: Any, key: Any, value: Any, name: str, depth: int) -> None:
        if not isinstance(container, tuple):  # of which no entry can be replaced
            self.places.append(_Place(name, container, key, value))
        self.at(value, name, depth)

    def _at_object(self, value: Any, where: str, depth: int) -> None:
        held = _attributes(value)
        container = vars(value) if hasattr(value, "__dict__") else value
        for key, entry in held.items():
            self._entry(container, key, entry, f"{where}.{key}", depth - 1)
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if inspect.isfunction(call):
            self._at_function(call, depth)
            self._at_class(value, where, call)

    def _at_class(self, value: Any, where: str, method: Callable[..., Any]) -> None:
        """At what a method may read of its object's classes, or find in their place one day."""
        code = getattr(inspect.unwrap(method), "__code__", None)
        if code is None:
            return
        names, own = _names(code), getattr(value, "__dict__", {})
        kinds = [kind for kind in type(value).__mro__ if not _is_ours(kind)]
        for kind in kinds:
            self._at_names(kind, where, names)
        for name in names:
            found = [kind for kind in kinds if name in vars(kind)]
            for kind in found:
                if not isinstance(vars(kind)[name], (*PLAIN, Tensor, np.ndarray)):
                    self.places.append(_Place(f"{where}.{name}", kind, name, vars(kind)[name]))
                self._at_helper(value, where, vars(kind)[name])
            if found and isinstance(vars(found[0])[name], (*PLAIN, Tensor, np.ndarray)):
                before = kinds[: kinds.index(found[0])]
                for held in (*before, *([] if name in own else [own])):
                    self.places.append(_Place(f"{where}.{name}", held, name, _GONE))

    def _at_helper(self, value: Any, where: str, helper: Any) -> None:
        """At the code of what a method calls of its own object."""
        for inner in ("fget", "__func__", "func"):  # of properties and methods of a class
            helper = getattr(helper, inner, helper)
        if not inspect.isfunction(helper) or id(helper) in self._seen:
            return
        self._seen.add(id(helper))
        self._at_function(helper, _DEEP - 1)
        self._at_class(value, where, helper)

    def _at_module(self, module: nn.Module, name: str) -> None:
        top = name or type(module).__name__
        for path, part in module.named_modules():
            where = f"{top}.{path}" if path else top
            if not all(map(_is_ours, type(part).__mro__)):
                self._at_own_module(part, where)
            for key, value in part.__dict__.items():
                if isinstance(value, PLAIN):
                    self.values[f"{where}.{key}"] = value
                if isinstance(value, Tensor):
                    self.values[f"the tensor {where}.{key}"] = _written(value)
                if isinstance(value, (*PLAIN, Tensor, np.ndarray)):
                    self.places.append(_Place(f"{where}.{key}", part.__dict__, key, value))
            for key, layer in part._modules.items():
                self.places.append(_Place(f"{where}.{key}", part._modules, key, layer))
            layers, held = part._modules, part.__dict__
            self.places.append(_Place(f"the layers of {where}", layers, _LENGTH, len(layers)))
            code = held.get("forward", _GONE)
            self.places.append(_Place(f"{where}.forward", held, "forward", code))
            for hooks in (getattr(part, name) for name in _HOOKS):
                self.places.append(_Place(f"the hooks of {where}", hooks, _CONTENTS, dict(hooks)))
            for key, buffer in part._buffers.items():
                if buffer is not None:
                    written = id(buffer), buffer._version
                    self.values[f"the buffer {where}.{key}"] = written
                    self.places.append(_Place(f"{where}.{key}", part._buffers, key, buffer))

            for key, parameter in part._parameters.items():
                if parameter is not None and not parameter.requires_grad:  # others are trained
                    self.places.append(_Place(f"{where}.{key}", part._parameters, key, parameter))
                    flag = f"{where}.{key}.requires_grad"
                    self.places.append(_Place(flag, parameter, "requires_grad", False))

    def _at_own_module(self, part: nn.Module, where: str) -> None:
        """At what a user's own network holds beside tensors, and what its forward reads."""
        for key, value in part.__dict__.items():
            if key == "_pyro_samples" or not (key in _OF_MODULES or key.startswith("_pyro")):
                self._entry(part.__dict__, key, value, f"{where}.{key}", _DEEP - 1)
        forward = inspect.unwrap(type(part).forward)
        if inspect.isfunction(forward):
            self._at_function(forward, _DEEP - 1)
            self._at_class(part, where, forward)

    def _at_function(self, function: Callable[..., Any], depth: int) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if inspect.isfunction(wrapped) and depth >= 0:  # what decorates it has a closure, too
            self._at_function(wrapped, depth)
        code = getattr(function, "__code__", None)
        if code is None:
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            value = _contents(cell)
            if value is not _GONE:
                self._entry(cell, None, value, name, depth - 1)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.at(default, f"a default of {function.__name__}", depth - 1)
        scope, names = function.__globals__, _names(code)
        for name in names:
            value = scope.get(name, _GONE)
            if isinstance(value, (type, ModuleType)):
                self._at_names(value, name, names)
            elif value is not _GONE:
                self._entry(scope, name, value, name, depth - 1)

    def _at_names(self, owner: type | ModuleType, where: str, names: tuple[str, ...]) -> None:
        """At values that a function may read from a module or class by their name."""
        held = vars(owner)
        for name in names:
            value = held.get(name, _GONE)
            if isinstance(value, PLAIN):
                self.values[f"{where}.{name}"] = value
            if isinstance(value, (*PLAIN, Tensor, np.ndarray)):
                self.places.append(_Place(f"{where}.{name}", owner, name, value))
            elif isinstance(value, (*_SEQUENCES, *_SETS, dict)):
                self.places.append(_Place(f"{where}.{name}", owner, name, value))
                self.at(value, f"{where}.{name}", 1)


def _names(code: CodeType) -> tuple[str, ...]:
    """Names that a function reads, those of functions and comprehensions inside of it as well."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return (*code.co_names, *(name for one in inner for name in _names(one)))


def _written(tensor: Tensor) -> Any:
    """What tells whether another tensor is there, or this one was written into."""
    return id(tensor), None if tensor.is_inference() else tensor._version


def _is_ours(kind: type) -> bool:
    """Whether a class is of Python, or of a package whose code a step does not change."""
    return kind is object or (kind.__module__ or "").startswith(_OURS)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _GONE


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") or any(map(_slots, type(value).__mro__))


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds, in its ``__dict__`` or its ``__slots__``."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    held = {name: getattr(value, name, _GONE) for name in slots}
    return {k: v for k, v in held.items() if v is not _GONE} | getattr(value, "__dict__", {})


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
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return sorted(value, key=repr) if isinstance(value, _SETS) else [*value]


def _same_contents(container: Any, kept: Any) -> bool:
    """Whether a container has the very objects that it had, or equal plain values."""
    if len(container) != len(kept):
        return False
    if isinstance(container, set):
        return bool(container == kept)
    if isinstance(container, dict):
        if container.keys() != kept.keys():
            return False
        container, kept = [container[key] for key in kept], kept.values()
    if all(map(operator.is_, container, kept)):
        return True
    pairs = zip(container, kept, strict=True)
    return all(one is other or _is_equal(one, other) for one, other in pairs)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two objects are the same plain value."""
    return isinstance(one, PLAIN) and type(one) is type(other) and repr(one) == repr(other)
