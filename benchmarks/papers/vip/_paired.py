"""Paired differences to one of the methods, with their standard errors."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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
) -> str:
    """
    A table of what each method has more than another in RMSE and NLL.

    :param rows: with ``method``, ``rmse`` and ``nll``.
    :param str base: the other method.
    :param group: a key of the rows by which lines are grouped.
    :param units: keys that tell which rows are of the same data.
    """
    lines = []
    for names, found in pairs(rows, base, group=group, units=units):
        changes = [[one[key] - other[key] for one, other in found] for key in _KEYS.values()]
        gains = [-change for change in changes[-1]]
        lines.append([*names, *(mean_cell(one, "+") for one in changes), ahead(gains)])
    named = [key for key in (group, "method") if key is not None]
    return format_table([*named, *_KEYS, "ahead in NLL"], lines)


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
