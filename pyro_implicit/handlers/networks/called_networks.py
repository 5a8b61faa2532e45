"""The networks that a model calls, as they are called."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable

from torch import nn

__all__ = ["CalledNetworks", "names_of", "note_call"]


_state = threading.local()


class CalledNetworks:
    """
    Notes each network that this thread calls in evaluation mode, as long as it is held.

    No hook is its own: what an exception keeps alive costs nothing.
    """

    def __init__(self) -> None:
        self._called: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        if not hasattr(_state, "watching"):
            _state.watching = weakref.WeakSet()
        _state.watching.add(self)

    def note(self, module: nn.Module) -> None:
        """
        Notes a network.

        :param module: what is called.
        """
        self._called[module] = None

    def outermost(self) -> list[nn.Module]:
        """
        Those that are no part of another one.

        :returns: in the order of their first calls.
        """
        called = list(self._called)
        inner = {part for one in called for part in one.modules() if part is not one}
        return [one for one in called if one not in inner]


def note_call(module: nn.Module) -> None:
    """
    Tells those who watch, in this thread, that a network is called.

    :param module: the network.
    """
    for one in getattr(_state, "watching", ()):
        one.note(module)


def names_of(networks: Iterable[nn.Module]) -> list[str]:
    """
    What networks are called in messages.

    :param networks: any.
    :returns: of each its class, with a number where others of that class came before it.
    """
    seen: Counter[str] = Counter()
    names = []
    for network in networks:
        name = type(network).__name__
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return names
