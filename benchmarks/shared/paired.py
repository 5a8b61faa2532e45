"""Rows of each method beside those of one of them on the same data, for paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["ahead", "pairs"]

Row = dict[str, Any]


def pairs(
    rows: Sequence[Row], base: str, *, group: str | None = None, units: Sequence[str] = ("seed",)
) -> Iterator[tuple[list[Any], list[tuple[Row, Row]]]]:
    """
    Groups and methods come in the order of the rows; those without a common row are left out.

    :param rows: with ``method``, and of one method one for each group and unit.
    :param str base: the method that all others are compared to.
    :param group: a key of the rows by which they are told apart: ``"set"``.
    :param units: keys by which rows of one group are of the same data.
    :returns: for each other method its group (if there are any) and name, and its rows with the
        base's.
    """
    keys = ([] if group is None else [group]) + list(units)
    of_base = {_values(row, keys): row for row in rows if row["method"] == base}
    for name in dict.fromkeys(row[group] if group else None for row in rows):
        own = [row for row in rows if group is None or row[group] == name]
        for method in dict.fromkeys(row["method"] for row in own):
            found = [
                (row, of_base[_values(row, keys)])
                for row in own
                if row["method"] == method != base and _values(row, keys) in of_base
            ]
            if found:
                yield [*([name] if group else []), method], found


def ahead(changes: Sequence[float]) -> str:
    """
    :param changes: one of each unit.
    :returns: how many are above zero, ``"3 of 5"``.
    """
    return f"{sum(change > 0 for change in changes)} of {len(changes)}"


def _values(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[key] for key in keys)
