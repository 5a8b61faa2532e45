"""Which program a result was found with, without keeping the program alive."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["ProgramRef"]


class ProgramRef:
    """
    A reference to a model or a guide, which knows the program when it comes again.

    It is a weak one where that is possible.

    A bound method is a new object at each look: it is the same where object and function are.

    :param program: a callable.
    """

    def __init__(self, program: Any) -> None:
        weak = weakref.WeakMethod if inspect.ismethod(program) else weakref.ref
        try:
            self._ref: Callable[[], Any] = weak(program)
        except TypeError:  # of an object with slots, which is kept then
            self._ref = lambda: program

    def __call__(self) -> Any:
        """The program, or None if it is gone."""
        return self._ref()

    def is_of(self, program: Any) -> bool:
        """
        Tells whether it refers to a program.

        :param program: a callable.
        :returns: whether it is that one.
        """
        known = self._ref()
        if inspect.ismethod(known) and inspect.ismethod(program):
            return known.__self__ is program.__self__ and known.__func__ is program.__func__
        return known is not None and known is program
