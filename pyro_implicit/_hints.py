"""Hints at slow settings: each said once in a process."""

from __future__ import annotations

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import PerformanceHint

__all__ = ["hint"]

_shown_hints: set[str] = set()


def hint(topic: str, message: str) -> None:
    """
    Says once in this process that something could be much faster.

    :param str topic: what it is about; said once for each.
    :param str message: what was found and what to write instead.
    :warns PerformanceHint: the first time.
    """
    if topic in _shown_hints:
        return
    _shown_hints.add(topic)
    warn(
        f"Performance hint: {message} (Said once; warnings.simplefilter('ignore', "
        "pyro_implicit.exceptions.PerformanceHint) silences all hints.)",
        PerformanceHint,
    )
