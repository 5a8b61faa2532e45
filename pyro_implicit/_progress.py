"""Progress bars, hidden where the call or the environment (``TQDM_DISABLE``) wants none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm.auto import tqdm

__all__ = ["hidden_progress", "progress_bar", "progress_is_hidden"]

_IS_PROGRESS_HIDDEN: ContextVar[bool] = ContextVar("progress_is_hidden", default=False)


@contextmanager
def hidden_progress(hide: bool) -> Iterator[None]:
    """
    Hides the bars of what happens within, such as the start of a guide at its first call.

    :param bool hide: whether it does.
    """
    token = _IS_PROGRESS_HIDDEN.set(hide or _IS_PROGRESS_HIDDEN.get())
    try:
        yield
    finally:
        _IS_PROGRESS_HIDDEN.reset(token)


def progress_is_hidden() -> bool:
    """Tell whether bars are hidden here."""
    return _IS_PROGRESS_HIDDEN.get()


def progress_bar(iterable: Iterable[Any] | None = None, *, shown: bool, **options: Any) -> Any:
    """
    Makes a bar.

    A bar that is shown is told nothing of it: only then does tqdm look at ``TQDM_DISABLE``.

    :param iterable: what is gone through, if anything.
    :param bool shown: whether it is.
    :param options: those of tqdm.
    :returns: the bar.
    """
    return tqdm(iterable, **options, **({} if shown else {"disable": True}))
