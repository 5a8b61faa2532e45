"""What a program keeps in Python from one call to the next, as far as it can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pyro_implicit._random import read_random_state
from pyro_implicit.handlers.looks.kept_place import CONTENTS_KEY, GONE, LENGTH_KEY, Place
from pyro_implicit.handlers.looks.python_look import Look, TooMuchToSee, unseen

__all__ = ["PythonState", "python_state"]

_REQUIRES_GRAD = "requires_grad"  # the key of a place that is a tensor's flag
_TOO_MUCH_TO_SEE = "more than can be looked at each time"
_MAX_WALKS = 4  # a chain of methods that call those of other classes is followed so far


@dataclass
class PythonState:
    """
    What programs keep, by where it is.

    :param values: plain values and versions of buffers, by a name for messages.
    :param places: all that was met on the way, tensors and arrays among it.
    """

    values: dict[str, Any]
    places: list[Place] = field(default_factory=list)

    # those that are asked after fastest, and the others
    _entries: list[tuple[dict[Any, Any], Any, Any, Place]] = field(init=False, repr=False)
    _lengths: list[tuple[Any, int, Place]] = field(init=False, repr=False)
    _flags: list[tuple[Any, bool, Place]] = field(init=False, repr=False)
    _empty: list[Place] = field(init=False, repr=False)
    _rest: list[Place] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        held = [p for p in self.places if isinstance(p.container, dict)]
        entries = [p for p in held if p.key is not CONTENTS_KEY and p.key is not LENGTH_KEY]
        self._entries = [(p.container, p.key, p.value, p) for p in entries]
        self._empty = [p for p in held if p.key is CONTENTS_KEY and not p.container]
        lengths = [p for p in self.places if p.key is LENGTH_KEY]
        self._lengths = [(p.container, p.value, p) for p in lengths]
        flags = [
            p for p in self.places if isinstance(p.container, Tensor) and p.key == _REQUIRES_GRAD
        ]
        self._flags = [(p.container, p.value, p) for p in flags]
        fast = {id(place) for place in (*entries, *lengths, *flags, *self._empty)}
        self._rest = [p for p in self.places if id(p) not in fast]

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
        for container, key, value, place in self._entries:
            if container.get(key, GONE) is not value and place.is_replaced():
                return place.name
        for container, length, place in self._lengths:
            if len(container) != length:
                return place.name
        for tensor, flag, place in self._flags:
            if tensor.requires_grad is not flag:
                return place.name
        for place in self._empty:
            if place.container:
                return place.name
        return next((place.name for place in self._rest if place.is_replaced()), "")


def python_state(*programs: Any) -> PythonState:
    """
    Reads what models and guides keep: attributes, closures, buffers, and what they name.

    They name globals, and entries of modules and classes. Plain values, and lists and dictionaries
    of them, are read, and of buffers whether they were written; so is whether Python, NumPy or a
    generator that is held drew random numbers. An iterator that is held counts as changed.

    :param programs: callables.
    :returns: what was read.
    """
    look = _walk(Look(), programs)
    for _ in range(_MAX_WALKS):  # until no function is found that reads other names
        known = len(look.names)
        look = _walk(Look(look.names), programs)
        if len(look.names) == known or _TOO_MUCH_TO_SEE in look.values:
            break
    state = read_random_state()
    _, keys, *rest = state["numpy"]
    look.values["the random numbers of Python"] = hash(state["random"])
    look.values["the random numbers of NumPy"] = hash(keys.tobytes()), *rest
    return PythonState(look.values, look.places)


def _walk(look: Look, programs: tuple[Any, ...]) -> Look:
    for program in programs:
        try:
            look.at(program, "")
        except TooMuchToSee:
            look.values[_TOO_MUCH_TO_SEE] = unseen()
            break
        except Exception:  # of attributes that run a user's code
            look.values["what cannot be looked at"] = unseen()
    return look
