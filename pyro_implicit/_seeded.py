"""Draws from a seed that a user gives, or from the global random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyro_implicit._checks import check_seed
from pyro_implicit._random import RandomStream

__all__ = ["seeded"]


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """
    All that is drawn within comes from a seed, and random numbers outside go on as if nothing had.

    :param int seed: as :func:`~pyro_implicit._checks.check_seed` takes it; None: the global random
        numbers are drawn from, as they are.
    :raises ArgumentError: for anything else.
    """
    if seed is None:
        yield
        return
    with RandomStream(check_seed("seed", seed)):
        yield
