"""What the records cost: the CPU time of all their fits, by folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.common import format_table
from benchmarks.records import FOLDER, read_record
from benchmarks.registry import FOLDERS

__all__ = ["fits", "table"]


def fits(rows: Iterable[Any]) -> list[float]:
    """
    CPU seconds of the fits of a record; empty where it does not tell them. Rows with the same
    number, which has nanoseconds, are of one fit: its best state and its last, say.

    :param rows: of the record.
    """
    found = (row.get("cpu_seconds") for row in rows)
    return list({value for value in found if isinstance(value, (int, float))})


def table() -> str:
    """
    One line for each folder of benchmarks, and one for all: records, those whose rows tell the CPU
    time of a fit, fits, hours.
    """
    lines: list[list[Any]] = []
    for folder in FOLDERS:
        names = [name for one in folder.BENCHMARKS for name in one.records]
        kept = [name for name in names if (FOLDER / f"{name}.json").is_file()]
        costs = [cost for name in kept if (cost := fits(read_record(name)["rows"]))]
        seconds = sum(map(sum, costs))
        place = folder.__name__.partition(".")[2]
        lines.append([place, len(kept), len(costs), sum(map(len, costs)), seconds / 3600])
    lines.append(["all", *(sum(line[place] for line in lines) for place in range(1, 5))])
    shown = [[*line[:-1], f"{line[-1]:.1f}" if line[-1] else None] for line in lines]
    return format_table(["benchmarks of", "records", "with CPU time", "fits", "CPU hours"], shown)
