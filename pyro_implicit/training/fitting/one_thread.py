"""Fits of several threads, which would mix their statements."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyro_implicit.exceptions import StateError

__all__ = ["one_thread"]

_running = threading.RLock()  # of the thread that fits, which may fit within a fit


@contextmanager
def one_thread(what: str) -> Iterator[None]:
    """
    Refuses to begin while another thread is within.

    Pyro's handlers and parameters are those of the whole process: each thread would meet the
    other's sites.

    :param str what: the call, such as ``"fit"``.
    :raises StateError: if another thread is within.
    """
    if not _running.acquire(blocking=False):
        raise StateError(
            f"{what} was called while another thread is in it: Pyro's handlers and parameters are "
            "those of the whole process, and each would meet the other's sites. Fit one after the "
            "other, or in processes of their own."
        )
    try:
        yield
    finally:
        _running.release()
