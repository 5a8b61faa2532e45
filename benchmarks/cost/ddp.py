"""
Wall time of 1 and of 2 processes (gloo, CPU) for the same network, and the bytes they exchange.

Each process runs ``benchmarks.cost.train_distributed`` with the same batch per process and one
thread.
With as many free cores as processes, twice the data are seen in the time of a step and of the
exchange of gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tqdm.auto import tqdm

from benchmarks.common import format_table, mean_and_error, parse, parser, positive
from benchmarks.records import write_record


def run(processes: int, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run in processes of its own."""
    command = [
        sys.executable, "-m", "benchmarks.cost.train_distributed", "--accelerator", "cpu",
        "--devices", str(processes), "--network", arguments.network, "--guide", arguments.guide,
        "--steps", str(arguments.steps), "--batch-size", str(arguments.batch_size),
        "--random-images", "--num-train", "4096", "--quiet", "--seeds", str(seed),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"error: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(lines[0])


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each number of processes: means and standard errors over seeds."""
    forms = {"seconds per step": ".3f", "data per second": ".0f"}
    same = ("parameters", "MB sent per step")
    lines = []
    for processes in dict.fromkeys(row["processes"] for row in rows):
        own = [row for row in rows if row["processes"] == processes]
        cells = [mean_and_error([row[key] for row in own], form) for key, form in forms.items()]
        lines.append([processes, len(own), *cells, *(own[0][key] for key in same)])
    return format_table(["processes", "runs", *forms, *same], lines)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    rows = []
    jobs = [(seed, processes) for seed in arguments.seeds for processes in (1, 2)]
    for seed, processes in tqdm(jobs, disable=arguments.quiet):
        rows.append(run(processes, arguments, seed))
        # a ring all-reduce sends and receives 2 (k - 1) / k of the gradients' size per process
        sent = 2 * (processes - 1) / processes * 4 * rows[-1]["parameters"]
        rows[-1] |= {"seed": seed, "MB sent per step": sent / 1e6}
        write_record("ddp", arguments, {}, rows)
    print(table(rows))
    return rows


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=range(3))
    options.add_argument("--network", default="lenet")
    options.add_argument("--guide", default="B")
    options.add_argument("--steps", type=positive, default=30, help="(default: 30)")
    options.add_argument("--batch-size", type=positive, default=256, help="per process")
    return options


if __name__ == "__main__":
    main()
