"""Matplotlib axes to draw on."""

from __future__ import annotations

from typing import Any

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ArgumentError, MissingExtraError


def new_or_given(ax: Any) -> Any:
    """
    Check axes that were given, or make new ones.

    :param ax: Matplotlib axes, or None.
    :raises ArgumentError: for anything else.
    :raises MissingExtraError: if there are none and Matplotlib is not installed.
    """
    if ax is not None:
        if isinstance(ax, type) or not (hasattr(ax, "plot") and hasattr(ax, "set_ylim")):
            raise ArgumentError(f"ax={shown(ax)}; expected Matplotlib axes, or None for new ones.")
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError("plots need Matplotlib: pip install pyro-implicit[main]") from error
    return pyplot.subplots()[1]
