"""UCI regression on canonical splits: implicit guides beside mean-field VI and MAP, one table."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyro
import torch
from tqdm.auto import tqdm

from benchmarks.common import format_table, load_npz, mean_and_error, parse, parser, positive
from benchmarks.records import write_record
from benchmarks.shared.paired import ahead, pairs
from benchmarks.shared.uci import build_model, load_split, score
from benchmarks.shared.uci_fits import CANDIDATES, METHODS, Settings, Workbench, choice

DESCRIPTION = """\
A network with one hidden layer of 50 tanh units, standard normal priors and unknown noise, on the
canonical splits of UCI sets. Test RMSE, log-likelihood and 90% coverage in the target's units, mean
and standard error over splits.

map                  a short MAP fit, from which all others start
mean-field           AutoNormal, Trace_ELBO
recipe               HyperNetworkGuide, 100 noise dimensions, LinearisedELBO
recipe-no-entropy    the same generator without the entropy term: its control
full-rank            ResidualGenerator, init_from="hessian", LinearisedELBO
full-rank-per-datum  the same with likelihood="per_datum"

Settings were chosen with --choose, which holds out 15% of each training part and never touches a
test row and tries init_from="ggn" of full-rank as well; the chosen ones are in
benchmarks/shared/uci_fits.py and are used on the full training parts."""

SETS = ("concrete", "energy")


@dataclass(frozen=True)
class Task:
    """All methods on one split with one seed, in one process."""

    data_root: Path
    name: str
    split: int
    seed: int
    methods: tuple[str, ...]
    effort: float
    validation: bool
    threads: int
    quiet: bool


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0], methods=METHODS)
    options.add_argument("--sets", nargs="+", default=list(SETS), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(5)), metavar="K")
    options.add_argument(
        "--num-steps", type=float, default=1.0, metavar="F", help="factor on all numbers of steps"
    )
    options.add_argument("--processes", type=positive, default=1, metavar="N", help="(default: 1)")
    options.add_argument(
        "--choose", action="store_true", help="try the candidates on validation rows instead"
    )
    arguments = parse(options, argv)
    tasks = list(_tasks(arguments))
    rows: list[dict[str, Any]] = []
    progress = tqdm(_results(tasks, arguments), total=len(tasks), disable=arguments.quiet)
    for result in progress:
        rows.extend(result)
        write_record("uci_regression", arguments, _settings(arguments), rows)
    print(table(rows))
    return rows


def _tasks(arguments: Namespace) -> Iterator[Task]:
    for name in arguments.sets:
        count = len(load_npz(arguments.data_root, f"uci/{name}.npz")["train_idx"])
        for split in arguments.splits:
            if not 0 <= split < count:
                raise SystemExit(f"error: {name} has splits 0 to {count - 1}, found {split}")
            for seed in arguments.seeds:
                yield Task(
                    arguments.data_root,
                    name,
                    split,
                    seed,
                    tuple(arguments.methods),
                    arguments.num_steps,
                    arguments.choose,
                    arguments.threads,
                    arguments.quiet or arguments.processes > 1,
                )


def _results(tasks: list[Task], arguments: Namespace) -> Iterator[list[dict[str, Any]]]:
    if arguments.processes == 1:
        yield from map(run_task, tasks)
        return
    with get_context("spawn").Pool(arguments.processes) as pool:
        yield from pool.imap_unordered(run_task, tasks)


def run_task(task: Task) -> list[dict[str, Any]]:
    """
    :returns: one row for each method (and candidate), with scores, settings and seconds.
    """
    torch.set_num_threads(task.threads)
    with pyro.validation_enabled(False):  # of shapes and values, at every step
        return list(_fits(task))


def _fits(task: Task) -> Iterator[dict[str, Any]]:
    split = load_split(task.data_root, task.name, task.split, validation=task.validation)
    model = build_model(split.x.shape[1], len(split.x))
    bench = Workbench(model, split, task.seed, effort=task.effort, quiet=task.quiet)
    for method in task.methods:
        chosen = [choice(method, task.name)]
        for settings in CANDIDATES[method] if task.validation else chosen:
            draws, watch = bench.run(method, settings)
            pyro.set_rng_seed(task.seed)
            yield {
                "set": task.name,
                "split": task.split,
                "seed": task.seed,
                "method": method,
                "settings": asdict(settings),
                **score(model, draws, split),
                "seconds": watch.seconds,
                "cpu_seconds": watch.cpu_seconds,
            }


def _settings(arguments: Namespace) -> dict[str, Any]:
    held = "15% of the training part" if arguments.choose else "test part"
    return {"held out": held, "splits": arguments.splits, "num_steps_factor": arguments.num_steps}


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over splits (and seeds) for each set, method and setting."""
    groups: dict[tuple[str, str, Settings], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["set"], METHODS.index(row["method"]))):
        key = (row["set"], row["method"], Settings(**row["settings"]))
        groups.setdefault(key, []).append(row)
    lines = []
    for (name, method, settings), members in groups.items():
        cells = [_mean(members, key) for key in ("rmse", "log_likelihood", "coverage")]
        seconds = statistics.fmean(row["cpu_seconds"] for row in members)
        lines.append([name, method, str(settings), len(members), *cells, f"{seconds:.0f}"])
    header = ["set", "method", "settings", "fits", "RMSE", "log-likelihood", "90% coverage"]
    header.append("CPU s")
    if len(groups) == len({key[:2] for key in groups}):  # each method has one setting: not shown
        header.remove("settings")
        lines = [[*line[:2], *line[3:]] for line in lines]
    return format_table(header, lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """In log-likelihood to mean-field on the same split and seed."""
    lines = []
    for names, found in pairs(rows, "mean-field", group="set", units=("split", "seed")):
        changes = [row["log_likelihood"] - other["log_likelihood"] for row, other in found]
        lines.append([*names, mean_and_error(changes, "+.2f", ".2f"), ahead(changes)])
    return format_table(["set", "method", "difference", "splits ahead"], lines)


def _mean(rows: list[dict[str, Any]], key: str) -> str:
    return mean_and_error([row[key] for row in rows], ".2f")


if __name__ == "__main__":
    main()
