"""Warnings that point at a line of the user's program, whatever led from there to here."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from types import FrameType

__all__ = ["PACKAGE_FOLDER", "user_line", "warn"]

#: where the files of this package are
PACKAGE_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: through which calls pass on their way from a user's line
_SKIPPED_LIBRARIES = ("pyro_implicit", "pyro", "torch", "lightning", "pytorch_lightning")
_SKIPPED_FILES = (contextlib.__file__, functools.__file__)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """
    Warns at the innermost line that is of no library: a call of ours, or a line of a model.

    :param str message: what to say.
    :param category: the kind of warning.
    :warns Warning: of that kind.
    """
    warnings.warn(message, category, stacklevel=_found()[0] - 1)


def user_line() -> tuple[str, int]:
    """
    The innermost line that is of no library.

    :returns: its file and its number.
    """
    frame = _found()[1]
    return frame.f_code.co_filename, frame.f_lineno


def _found() -> tuple[int, FrameType]:
    """How many frames up from here the user's line is, and its frame; or the outermost one."""
    folders = tuple(
        os.path.dirname(file) + os.sep
        for name in _SKIPPED_LIBRARIES
        if (file := getattr(sys.modules.get(name), "__file__", None))
    )
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(folders + _SKIPPED_FILES):
        outer: FrameType | None = frame.f_back
        if outer is None:
            break
        level, frame = level + 1, outer
    return level, frame
