"""Tables of the posterior-predictive experiments: means over seeds with their standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import format_table, mean_and_error

__all__ = ["over_seeds", "paired"]


def over_seeds(
    rows: Sequence[Mapping[str, Any]], by: Sequence[str], columns: Mapping[str, tuple[str, str]]
) -> str:
    """
    One line for all seeds of a fit.

    :param rows: of a record.
    :param by: the keys that tell fits of different kinds apart; the first columns.
    :param columns: by key of a row, a header and the form of its mean. What no row of a line has
        is an empty cell.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), []).append(row)
    lines = []
    for names, own in groups.items():
        cells = []
        for key, (_, form) in columns.items():
            known = [row[key] for row in own if row.get(key) is not None]
            cells.append(mean_and_error(known, form, form.lstrip("+")) if known else None)
        lines.append([*names, *cells])
    return format_table([*by, *(header for header, _ in columns.values())], lines)


def paired(
    rows: Sequence[Mapping[str, Any]],
    base: Any,
    by: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    of: str = "method",
) -> str:
    """
    What other methods have more than one of them, paired by seed.

    :param rows: of a record; those without a seed are left out.
    :param base: the method that is subtracted.
    :param by: the keys that a pair has in common, beside the seed.
    :param columns: see :func:`over_seeds`.
    :param str of: the key that tells methods apart.
    """
    keys = ("seed", *by)
    bases = {tuple(row[k] for k in keys): row for row in rows if row[of] == base}
    more = []
    for row in rows:
        other = bases.get(tuple(row[k] for k in keys))
        if other is not None and row[of] != base:
            difference = {key: row[key] - other[key] for key in columns}
            more.append({key: row[key] for key in (*by, of)} | difference)
    return over_seeds(more, (*by, of), columns)
