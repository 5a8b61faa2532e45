"""Paired differences to one of the methods, with their standard errors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import format_table, mean_and_error
from benchmarks.shared.paired import ahead, pairs

__all__ = ["mean_cell", "paired"]

_KEYS = {"RMSE": "rmse", "NLL": "nll"}


def paired(
    rows: list[dict[str, Any]],
    base: str,
    *,
    group: str | None = None,
    units: Sequence[str] = ("seed",),
    keys: Mapping[str, str] = _KEYS,
) -> str:
    """
    A table of what each method has more than another in some scores.

    :param rows: with ``method`` and these.
    :param str base: the other method.
    :param group: a key of the rows by which lines are grouped.
    :param units: keys that tell which rows are of the same data.
    :param keys: of the scores, by the name of their column; less is better in the last one, by
        which it is told how often a method is ahead.
    """
    lines = []
    for names, found in pairs(rows, base, group=group, units=units):
        changes = [[one[key] - other[key] for one, other in found] for key in keys.values()]
        gains = [-change for change in changes[-1]]
        lines.append([*names, *(mean_cell(one, "+") for one in changes), ahead(gains)])
    named = [key for key in (group, "method") if key is not None]
    return format_table([*named, *keys, f"ahead in {list(keys)[-1]}"], lines)


def mean_cell(values: list[float], sign: str = "") -> str | None:
    """
    Mean and standard error, of small numbers with more digits; None of no values.

    :param values: one of each seed or split.
    :param str sign: ``"+"`` to show it always.
    """
    if not values:
        return None
    size = max(abs(statistics.fmean(values)), statistics.pstdev(values) / len(values) ** 0.5)
    digits = 2 if size >= 0.02 or size == 0 else 4 if size >= 0.0002 else 6  # naval
    return mean_and_error(values, f"{sign}.{digits}f", f".{digits}f")
