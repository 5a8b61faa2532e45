"""Checks of numbers that users pass to the diagnostics."""

from __future__ import annotations

from typing import Any

from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_integer"]


def check_integer(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """
    :raises ArgumentError: unless ``value`` is an integer from ``least`` to ``most``.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limit = "" if most is None else f" and <= {most}"
        raise ArgumentError(f"{name}={value!r}; expected an integer >= {least}{limit}")
