"""Warnings of a run, kept in words."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from pyro_implicit.exceptions import PerformanceHint

__all__ = ["collected_warnings"]

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
    wrong with it wherever it was made. (Hints at slow settings that are silenced stay away.)

    :param list into: gets their texts.
    """
    with warnings.catch_warnings():
        show, filters = warnings.showwarning, warnings.filters[:]

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
            is_shown = _is_shown(message, category, filename, lineno, filters)
            if is_shown or not issubclass(category, PerformanceHint):
                into.append(text)
            if is_shown:
                show(message, category, filename, lineno, file, line)

        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = keep
        yield


def _is_shown(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, filters: list[Any]
) -> bool:
    """Whether filters let a warning through; it is raised where they make errors of them."""
    modules = list(sys.modules.items())
    files = {getattr(one, "__dict__", {}).get("__file__"): name for name, one in modules}
    shown: list[Any] = []
    with warnings.catch_warnings():
        warnings.filters = filters
        warnings.showwarning = lambda *said, **_: shown.append(said)
        warnings.warn_explicit(message, category, filename, lineno, files.get(filename))
    return bool(shown)
