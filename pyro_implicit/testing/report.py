"""How a check fails: with an AssertionError that says what was checked, found and expected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit._random import RandomStream

__all__ = ["about", "apart", "expect", "expect_close"]


def expect(holds: Any, message: str) -> None:
    """
    Fails a check unless something holds, with Python's ``-O`` too.

    :param holds: what should be true.
    :param str message: what was expected, and what was found.
    :raises AssertionError: with the message.
    """
    if not holds:
        raise AssertionError(message)


def expect_close(
    found: Tensor, expected: Tensor, what: str, tolerance: float | None = None
) -> None:
    """
    Fails a check unless two tensors have one shape and nearly the same entries.

    :param torch.Tensor found: what was computed.
    :param torch.Tensor expected: what it should be.
    :param str what: a name of it for the message.
    :param float tolerance: relative and absolute; that of ``torch.testing`` by default.
    :raises AssertionError: telling how far they differ.
    """
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


@contextmanager
def about(what: str) -> Iterator[None]:
    """
    Names within it what is checked in whatever check fails.

    :param str what: the names of objective, guide and model, say.
    """
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


@contextmanager
def apart(seed: int) -> Iterator[None]:
    """
    Random numbers and Pyro parameters of its own; the caller's stay as they are.

    :param int seed: of the random numbers.
    """
    with RandomStream(seed), pyro.settings.context(module_local_params=True):
        yield
