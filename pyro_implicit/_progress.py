"""Progress bars of what happens inside of a call, hidden where the call shows none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["hidden_progress", "progress_is_hidden"]

_HIDDEN: ContextVar[bool] = ContextVar("progress_is_hidden", default=False)


@contextmanager
def hidden_progress(hide: bool) -> Iterator[None]:
    """
    Hides the bars of what happens within, such as the start of a guide at its first call.

    :param bool hide: whether it does.
    """
    token = _HIDDEN.set(hide or _HIDDEN.get())
    try:
        yield
    finally:
        _HIDDEN.reset(token)


def progress_is_hidden() -> bool:
    """Tell whether bars are hidden here."""
    return _HIDDEN.get()
