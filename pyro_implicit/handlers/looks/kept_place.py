"""A place where a program keeps something, and whether something else is there now."""

from __future__ import annotations

import operator
from array import array
from collections import deque
from types import CellType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

__all__ = [
    "CONTENTS_KEY",
    "CONTEXT_KEY",
    "GONE",
    "LENGTH_KEY",
    "MAPPING_TYPES",
    "PLAIN_TYPES",
    "SEQUENCE_TYPES",
    "VALUE_TYPES",
    "Place",
    "as_bytes",
    "contents",
]

#: whose objects have a value and nothing else
PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
#: They are compared by value if plain, and else by identity.
VALUE_TYPES = (*PLAIN_TYPES, Tensor, np.ndarray)
SEQUENCE_TYPES = (list, deque)  # whose entries have numbers, and may be replaced
MAPPING_TYPES = (dict, MappingProxyType)
GONE = object()  # stands for the value of a place where nothing is
LENGTH_KEY = object()  # in place of a key: the value is the number of all entries
CONTENTS_KEY = object()  # in place of a key: the value is a copy of all entries
CONTEXT_KEY = object()  # in place of a key: the value is what a context variable has now


class Place(NamedTuple):
    """
    Where an object is kept: an entry of a container, or the contents of a cell.

    :param str name: for messages.
    :param container: a dictionary, list, module, class, object, array, cell or context variable.
    :param key: of the entry; or ``LENGTH_KEY``, ``CONTENTS_KEY`` or ``CONTEXT_KEY``.
    :param value: what is there.
    """

    name: str
    container: Any
    key: Any
    value: Any

    def now(self) -> Any:
        """
        Looks again.

        :returns: what is there now; ``GONE`` if nothing is.
        """
        container, key = self.container, self.key
        if key is LENGTH_KEY:
            return len(container)
        if key is CONTEXT_KEY:
            return container.get(GONE)
        if isinstance(container, MAPPING_TYPES):
            return container.get(key, GONE)
        if isinstance(container, SEQUENCE_TYPES):
            return container[key] if key < len(container) else GONE
        if isinstance(container, (type, ModuleType)):
            return vars(container).get(key, GONE)
        if isinstance(container, CellType):
            return contents(container)
        return getattr(container, key, GONE)

    def is_replaced(self) -> bool:
        """
        Looks whether something else is there.

        :returns: False for the same object, or an equal plain value.
        """
        if self.key is CONTENTS_KEY:
            return not _same_contents(self.container, self.value)
        now = self.now()
        return now is not self.value and not _is_equal(now, self.value)


def contents(cell: Any) -> Any:
    """
    Looks into a cell of a closure.

    :param cell: as ``function.__closure__`` has them.
    :returns: what it holds; ``GONE`` if it is empty.
    """
    try:
        return cell.cell_contents
    except ValueError:
        return GONE


def as_bytes(numbers: Any) -> bytes:
    """
    Copies the numbers of an array.

    :param numbers: an array of NumPy or Python, or a ``bytearray``.
    :returns: what they are in memory.
    """
    return bytes(numbers) if isinstance(numbers, bytearray) else numbers.tobytes()


def _same_contents(container: Any, kept: Any) -> bool:
    """Whether a container has the very objects that it had, or equal plain values."""
    if isinstance(container, (np.ndarray, bytearray, array)):
        return bool(as_bytes(container) == kept)
    if len(container) != len(kept):
        return False
    if isinstance(container, set):
        return bool(container == kept)
    if isinstance(container, MAPPING_TYPES):
        if container.keys() != kept.keys():
            return False
        container, kept = [container[key] for key in kept], kept.values()
    if all(map(operator.is_, container, kept)):
        return True
    pairs = zip(container, kept, strict=True)
    return all(one is other or _is_equal(one, other) for one, other in pairs)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two objects are the same plain value."""
    return isinstance(one, PLAIN_TYPES) and type(one) is type(other) and repr(one) == repr(other)
