"""Warnings of a run, kept in words."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

import pyro_implicit
from pyro_implicit.exceptions import PerformanceHint

__all__ = ["collected_warnings"]

_PACKAGE = os.path.dirname(pyro_implicit.__file__) + os.sep
#: what torch says of itself, and no user can do anything about
_OF_TORCH = (
    "`torch.jit.script` is deprecated",  # when torch.func first loads its forward-mode rules
    "There is a performance drop because we have not yet implemented the batching rule",
)


@contextmanager
def collected_warnings(into: list[str]) -> Iterator[None]:
    """
    Python's warnings, each shown once, and kept in words too.

    What is shown is for the caller's filters to say. What is kept is not: a result tells what is
    wrong with it wherever it was made. (Hints at slow settings that are silenced stay away.) A
    warning that would point into this package, at a line of some step, points at the call.

    :param list into: gets their texts.
    """
    with warnings.catch_warnings():
        show, filters, call = warnings.showwarning, warnings.filters[:], _call()

        def keep(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            text = str(message)
            if text in into or any(known in text for known in _OF_TORCH):
                return
            if filename.startswith(_PACKAGE):
                filename, lineno = call
            is_shown = _is_shown(message, category, filename, lineno, filters)
            if is_shown or not issubclass(category, PerformanceHint):
                into.append(text)
            if is_shown:
                show(message, category, filename, lineno, file, line)

        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = keep
        yield


def _call() -> tuple[str, int]:
    """File and line of the call from outside of this package that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(
        (_PACKAGE, contextlib.__file__)
    ):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _is_shown(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    filters: Sequence[Any],
) -> bool:
    """Whether filters let a warning through; it is raised where they make errors of them."""
    modules = list(sys.modules.items())
    files = {getattr(one, "__dict__", {}).get("__file__"): name for name, one in modules}
    shown: list[Any] = []
    with warnings.catch_warnings():
        warnings.filters = list(filters)
        warnings.showwarning = lambda *said, **_: shown.append(said)
        warnings.warn_explicit(message, category, filename, lineno, files.get(filename))
    return bool(shown)
