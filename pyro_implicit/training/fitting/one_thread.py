"""Fits of several threads, which would mix their statements."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyro_implicit.exceptions import StateError

__all__ = ["one_thread"]


class _Locks:
    """The lock of this process; one that is forked has none of the threads of its parent."""

    def __init__(self) -> None:
        self._process, self._lock = 0, threading.RLock()

    def here(self) -> threading.RLock:
        """Of the thread that fits, which may fit within a fit."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
        return self._lock


_locks = _Locks()


@contextmanager
def one_thread(what: str) -> Iterator[None]:
    """
    Refuses to begin while another thread is within.

    Pyro's handlers and parameters are those of the whole process: each thread would meet the
    other's sites.

    :param str what: the call, such as ``"fit"``.
    :raises StateError: if another thread is within.
    """
    lock = _locks.here()
    if not lock.acquire(blocking=False):
        raise StateError(
            f"{what} was called while another thread is in it: Pyro's handlers and parameters are "
            "those of the whole process, and each would meet the other's sites. Fit one after the "
            "other, or in processes of their own."
        )
    try:
        yield
    finally:
        lock.release()
