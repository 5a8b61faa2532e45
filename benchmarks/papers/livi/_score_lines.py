"""A line for each method in one panel, told apart by line and mark, so that grey does as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["draw_lines"]

_STYLES = ("-", "--", "-.", ":")
_MARKS = "osv^D*xP+"


def draw_lines(
    ax: Any,
    places: Sequence[float],
    keys: Sequence[str],
    rows: list[dict[str, Any]],
    names: dict[str, str],
    *,
    across: bool = False,
) -> None:
    """
    Means over seeds; what the package is about, ``"lanczos"``, is black.

    :param ax: the panel, of Matplotlib.
    :param places: on the horizontal axis.
    :param keys: of the rows, one for each place.
    :param rows: of the benchmark.
    :param names: of all methods, as they are shown; a method's place is its line and mark.
    :param bool across: whether places are on the vertical axis instead.
    """
    for number, method in enumerate(names):
        own = [row for row in rows if row["method"] == method]
        if not own:
            continue
        means = [sum(row[key] for row in own) / len(own) for key in keys]
        ax.plot(
            *((means, places) if across else (places, means)),
            _STYLES[number % len(_STYLES)],
            marker=_MARKS[number % len(_MARKS)],
            color="black" if method == "lanczos" else f"C{number}",
            ms=5,
            lw=1.2,
            label=names[method],
        )
