"""Learning rates of the classifiers, chosen on rows that no seed tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyro
from tqdm.auto import trange

from benchmarks.benchmark import replaced
from benchmarks.common import fixed_seed, format_table, stopwatch
from benchmarks.papers.vip._class_fits import METHODS, SETTINGS
from benchmarks.papers.vip._classes import Task, load_untested, nll

__all__ = ["RATES", "choose", "rates"]

#: by the kind of a rate, the method that it is chosen with, and from which
RATES: dict[str, tuple[str, tuple[float, ...]]] = {
    "process": ("process, alpha=0.5", (0.003, 0.01, 0.03)),
    "mean-field": ("mean-field", (0.003, 0.01, 0.03)),
    "MAP": ("MAP", (0.003, 0.01, 0.03)),
    "GP": ("sparse GP", (0.01, 0.03, 0.1)),
}


def choose(arguments: Any, data_root: Path, name: str) -> list[dict[str, Any]]:
    """
    A row for each rate, with the likelihood of held rows that all seeds leave untested.

    :param arguments: of the benchmark.
    :param str name: one of the sets.
    """
    task = load_untested(data_root, name, arguments.seeds, arguments.num_images)
    rows = []
    for kind, (method, candidates) in RATES.items():
        for rate in candidates:
            steps = trange(arguments.num_steps, desc=f"{method} {rate}", disable=arguments.quiet)
            row = {"set": name, "method": method, "rate": rate}
            rows.append(row | _held(task, kind, method, rate, steps))
    return rows


def _held(task: Task, kind: str, method: str, rate: float, steps: Any) -> dict[str, Any]:
    others = {"rates": {**SETTINGS["rates"], kind: rate}}
    with replaced(SETTINGS, others), pyro.validation_enabled(False):
        with fixed_seed(0), stopwatch() as watch:
            predict, count = METHODS[method](task, steps)
            found = nll(predict(task.held[0]), task.held[1])
    return {"steps": count, "held_nll": found, "cpu_seconds": watch.cpu_seconds}


def rates(rows: Sequence[dict[str, Any]]) -> str:
    """By method and rate: what held rows say on each set, and on average."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines = []
    for method, rate in dict.fromkeys((row["method"], row["rate"]) for row in rows):
        own = {r["set"]: r["held_nll"] for r in rows if (r["method"], r["rate"]) == (method, rate)}
        found = [own[name] for name in sets]
        lines.append([method, f"{rate:g}", *(f"{v:.3f}" for v in (*found, sum(found) / len(sets)))])
    return format_table(["method", "rate", *sets, "mean"], lines)
