"""Does yesterday's posterior as today's prior keep what was learned, task after task?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser
from benchmarks.posterior._continual_learner import METHODS, Learner
from benchmarks.posterior._continual_problems import PROBLEMS, Problem
from benchmarks.records import write_record

__all__ = ["METHODS", "SETTINGS", "learn", "main", "settings_of", "table"]

DESCRIPTION = """\
Five tasks, one after the other, for one small network; no task's data are kept, but the few of a
coreset. Scores on the test data of all five tasks at the end, and how far they fell from when a
task was learned (forgetting).

digits  to tell two digits apart (0 or 1, 2 or 3, ...), all with the same output: the bundled
        digits of scikit-learn (8 x 8)
mnist   the same with MNIST, below --data-root
drift   a regression: a smooth curve of one input, drawn by the seed, of which each task shows
        the next window"""

SETTINGS: dict[str, Any] = {
    "by_fit": False,
    "own_start": False,
    "steps": 250,
    "rate": 0.02,
    "mean_field_steps": 250,
    "mean_field_rate": 0.02,
    "particles": 4,
    "draws": 100,
    "coreset": 20,
    "hidden": 16,
    "drift_by_fit": True,
    "drift_own_start": True,
    "drift_steps": 300,
    "drift_rate": None,
    "drift_mean_field_steps": 600,
    "drift_mean_field_rate": 0.05,
    "drift_particles": 32,
    "drift_coreset": 4,
    "drift_hidden": 10,
    "drift_windows": 5,
    "drift_rows": 50,
    "drift_test_rows": 100,
    "drift_length": 1.0,
    "drift_noise": 0.1,
}
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, methods=METHODS)
    options.add_argument("--data", nargs="+", choices=PROBLEMS, default=["digits"])
    arguments = parse(options, argv)
    rows: list[Row] = []
    todo = [(d, m, s) for d in arguments.data for s in arguments.seeds for m in arguments.methods]
    with pyro.validation_enabled(False):
        for data, method, seed in tqdm(todo, disable=arguments.quiet):
            settings = settings_of(data)
            with fixed_seed(seed):
                problem = PROBLEMS[data](arguments, seed, settings)
                for row in learn(method, problem, settings):
                    rows.append({"data": data, "method": method, "seed": seed} | row)
            write_record("continual", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def settings_of(data: str) -> dict[str, Any]:
    """
    Settings of one problem.

    :param str data: its name: what begins with it wins over what all share.
    """
    own = f"{data}_"
    mine = {key.removeprefix(own): value for key, value in SETTINGS.items() if key.startswith(own)}
    return SETTINGS | mine


def learn(method: str, problem: Problem, settings: dict[str, Any]) -> Iterator[Row]:
    """One row for each task, once it is learned, with the scores on all tasks."""
    learner = Learner(method, problem, settings)
    for number, task in enumerate(problem.tasks):
        begin = time.process_time()
        learner.learn(task.train, [other.train for other in problem.tasks[:number]])
        scores = [learner.scores(other.test) for other in problem.tasks]
        by_name = {name: [score[name] for score in scores] for name in scores[0]}
        yield {"task": number} | by_name | {"cpu_seconds": time.process_time() - begin}


# ---- the tables


def table(rows: list[Row]) -> str:
    """Means over seeds, at the end, on all tasks; a table of classes, and one of regressions."""
    classes = [row for row in rows if "accuracies" in row]
    regressions = [row for row in rows if "rmses" in row]
    kinds = (_classes, classes), (_regressions, regressions)
    return "\n\n".join(make(mine) for make, mine in kinds if mine)


def _classes(rows: list[Row]) -> str:
    header = ["method", "accuracy at the end", "worst seed", "when learned", "forgetting"]
    header += ["log density", "CPU s a task"]
    lines = []
    for method, mine in _by_method(rows):
        final, learned, fallen = _summary(mine, "accuracies")
        cells = [statistics.fmean(final), min(final), statistics.fmean(learned)]
        cells += [statistics.fmean(fallen)] if fallen else []
        shown = [f"{cell:.1%}" for cell in cells] + [""] * (not fallen)
        density = f"{statistics.fmean(_summary(mine, 'log_densities')[0]):.3f}"
        lines.append([method, *shown, density, _seconds(mine)])
    return format_table(header, lines)


def _regressions(rows: list[Row]) -> str:
    header = ["method", "log density at the end", "worst seed", "when learned", "forgetting"]
    header += ["RMSE at the end", "RMSE, forgetting", "CPU s a task"]
    lines = []
    for method, mine in _by_method(rows):
        final, learned, fallen = _summary(mine, "log_densities")
        errors, _, risen = _summary(mine, "rmses")
        cells = [f"{statistics.fmean(final):.2f}", f"{min(final):.2f}"]
        cells += [f"{statistics.fmean(learned):.2f}"]
        cells += [f"{statistics.fmean(fallen):.2f}" if fallen else ""]
        cells += [f"{statistics.fmean(errors):.3f}"]
        cells += [f"{-statistics.fmean(risen):.3f}" if risen else ""]
        lines.append([method, *cells, _seconds(mine)])
    return format_table(header, lines)


def _by_method(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    methods = dict.fromkeys(row["method"] for row in rows)
    return [(method, [row for row in rows if row["method"] == method]) for method in methods]


def _summary(rows: list[Row], key: str) -> tuple[list[float], list[float], list[float]]:
    """
    Scores of one method.

    :returns: of all tasks at the end, for each seed; of each task when it was learned; and by how
        much that fell until the end, of all but the last task.
    """
    last = max(row["task"] for row in rows)
    ends = {row["seed"]: row[key] for row in rows if row["task"] == last}
    learned = [row[key][row["task"]] for row in rows]
    fallen = [
        row[key][row["task"]] - ends[row["seed"]][row["task"]]
        for row in rows
        if row["task"] < last and row["seed"] in ends
    ]
    return [statistics.fmean(end) for end in ends.values()], learned, fallen


def _seconds(rows: list[Row]) -> str:
    return f"{statistics.fmean(row['cpu_seconds'] for row in rows):.1f}"
