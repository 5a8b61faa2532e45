"""Looks at model and guide before the first step, which are not to make their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro

__all__ = ["making_no_parameters"]


@contextmanager
def making_no_parameters() -> Iterator[None]:
    """Takes what is put into Pyro's store within back out: the run makes it anew, by its seed."""
    store = pyro.get_param_store()
    known = set(store.keys())
    try:
        yield
    finally:
        for name in [name for name in store.keys() if name not in known]:
            if store._params[name] in store._param_to_name:
                del store[name]
            else:  # a tensor of several names, which has been taken back by another
                del store._params[name], store._constraints[name]
