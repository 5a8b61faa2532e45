"""Warnings of a run, kept in words."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from pyro_implicit._warn import PACKAGE_FOLDER, user_line
from pyro_implicit.exceptions import PerformanceHint

__all__ = ["collected_warnings"]

#: what torch says of itself, and no user can do anything about
_IGNORED_WARNINGS_OF_TORCH = (
    "`torch.jit.script` is deprecated",  # when torch.func first loads its forward-mode rules
    "There is a performance drop because we have not yet implemented the batching rule",
)


_MAX_SILENCED_PER_LINE = 3  # texts that are kept: a line may have another one at each step


@contextmanager
def collected_warnings(into: list[str]) -> Iterator[None]:
    """
    Python's warnings, each shown once, and kept in words too.

    What is shown is for the caller's filters to say. What is kept is not: a result tells what is
    wrong with it wherever it was made. (Hints at slow settings that are silenced stay away, and so
    do more than a few texts of one line that are.) A warning of others that would point into this
    package, at a line of some step, points at the call.

    :param list into: gets their texts.
    """
    with warnings.catch_warnings():
        show, filters, call = warnings.showwarning, warnings.filters[:], user_line()
        silenced: Counter[tuple[str, int]] = Counter()

        def keep(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            text, place = str(message), (filename, lineno)
            known = text in into or any(words in text for words in _IGNORED_WARNINGS_OF_TORCH)
            if known or silenced[place] >= _MAX_SILENCED_PER_LINE:
                return
            # others have passed the filters of the caller already
            is_shown = not issubclass(category, UserWarning) or _is_shown(
                message, category, place, filters
            )
            if is_shown or not issubclass(category, PerformanceHint):
                into.append(text)
            if is_shown:
                place = call if filename.startswith(PACKAGE_FOLDER) else place
                show(message, category, *place, file, line)
            else:
                silenced[place] += 1

        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = keep
        yield


def _is_shown(
    message: Warning | str, category: type[Warning], place: tuple[str, int], filters: Sequence[Any]
) -> bool:
    """Whether filters let a warning through; it is raised where they make errors of them."""
    shown: list[Any] = []
    with warnings.catch_warnings():
        warnings.filters = list(filters)
        warnings.showwarning = lambda *said, **_: shown.append(said)
        warnings.warn_explicit(message, category, *place, _module_of(place[0]))
    return bool(shown)


def _module_of(filename: str) -> str | None:
    """The name of the module, at work now, that a file is of, as ``warnings.warn`` has it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")
