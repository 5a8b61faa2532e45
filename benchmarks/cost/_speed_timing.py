"""Times of jobs that are taken in turns, and the rows that tell how they compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tqdm.auto import tqdm

__all__ = ["Job", "Row", "Settings", "medians", "row", "rows_of"]

Job = Callable[[], Any]
Row = dict[str, Any]
Settings = Mapping[str, Any]


def medians(
    jobs: Mapping[str, Job],
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.process_time,
    quiet: bool = True,
) -> dict[str, float]:
    """
    :param jobs: by name, taken in turns in each round.
    :param int rounds: that are measured.
    :param int warm_up: rounds before.
    :param clock: seconds; CPU time of this process by default.
    :param bool quiet: no progress bar.
    :returns: the median milliseconds of each job.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for index in tqdm(range(warm_up + rounds), desc="rounds", disable=quiet):
        for name, job in jobs.items():
            start = clock()
            job()
            if index >= warm_up:
                times[name].append(1e3 * (clock() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def row(
    what: str,
    method: str,
    cpu_ms: float | None,
    *,
    base: str | None = None,
    ratio: float | None = None,
    goal: float | None = None,
    note: str = "",
) -> Row:
    """One line: the goal is one of the ratio where there is a base, else of the milliseconds."""
    found = {"what": what, "method": method, "cpu_ms": cpu_ms, "base": base, "ratio": ratio}
    return found | {"goal": goal, "note": note}


def rows_of(
    what: str,
    ms: Mapping[str, float],
    bases: Mapping[str, tuple[str, float | None]],
    notes: Mapping[str, str] | None = None,
) -> Iterator[Row]:
    """
    :param str what: name of the group.
    :param ms: milliseconds by method.
    :param bases: by method, the method that it is compared with, and the goal of the ratio.
    :param notes: by method.
    :returns: a row for each method, in their order.
    """
    for method, value in ms.items():
        base, goal = bases.get(method, (None, None))
        ratio = None if base is None else value / ms[base]
        note = (notes or {}).get(method, "")
        yield row(what, method, value, base=base, ratio=ratio, goal=goal, note=note)
