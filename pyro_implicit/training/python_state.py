"""What a program keeps in Python from one call to the next, as far as it can be seen."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pyro_implicit._random import read_random_state

__all__ = ["PythonState", "python_state"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST = 100  # entries of a list or dictionary that are looked at
_DEEP = 4  # functions in functions, objects in objects


@dataclass(frozen=True)
class PythonState:
    """
    Plain values and versions of buffers, by where they are.

    :param values: by a name for messages.
    """

    values: dict[str, Any]

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


def python_state(*programs: Any) -> PythonState:
    """
    Reads what models and guides keep: attributes, closures, globals that they name, buffers.

    Plain values, and lists and dictionaries of them, are read, and of buffers whether they were
    written; so is whether Python or NumPy drew random numbers.

    :param programs: callables.
    :returns: what was read.
    """
    values: dict[str, Any] = {}
    seen: set[int] = set()
    for program in programs:
        for name, value in _parts(program, "", seen, _DEEP):
            values[name] = value
    for name in ("random", "numpy"):
        state = repr(read_random_state()[name])
        values[f"the random numbers of {'Python' if name == 'random' else 'NumPy'}"] = hash(state)
    return PythonState(values)


def _parts(value: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
        return
    if id(value) in seen or depth < 0 or isinstance(value, Tensor):
        return
    seen.add(id(value))
    if isinstance(value, (list, tuple)) and len(value) <= _MOST:
        for place, entry in enumerate(value):
            yield from _parts(entry, f"{name}[{place}]", seen, depth - 1)
    elif isinstance(value, dict) and len(value) <= _MOST:
        for key, entry in value.items():
            yield from _parts(entry, f"{name}[{key!r}]", seen, depth - 1)
    elif isinstance(value, nn.Module):
        yield from _of_module(value, name)
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, value.args, value.keywords], name, seen, depth - 1)
    elif inspect.ismethod(value):
        yield from _parts(value.__self__, name, seen, depth)
        yield from _of_function(value.__func__, seen, depth)
    elif inspect.isfunction(value):
        yield from _of_function(value, seen, depth)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not inspect.ismodule(value):
        where = name or type(value).__name__
        for key, entry in vars(value).items():
            yield from _parts(entry, f"{where}.{key}", seen, depth - 1)


def _of_module(module: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    top = name or type(module).__name__
    for path, part in module.named_modules():
        where = f"{top}.{path}" if path else top
        for key, value in part.__dict__.items():
            if isinstance(value, _PLAIN):
                yield f"{where}.{key}", value
        for key, buffer in part.named_buffers(recurse=False):
            yield f"the buffer {where}.{key}", (id(buffer), buffer._version)


def _of_function(function: Callable[..., Any], seen: set[int], depth: int) -> Iterator[Any]:
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    named = [(name, cell.cell_contents) for name, cell in cells if _is_set(cell)]
    scope = function.__globals__
    named += [(name, scope[name]) for name in code.co_names if name in scope]
    for name, value in named:
        yield from _parts(value, name, seen, depth - 1)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
