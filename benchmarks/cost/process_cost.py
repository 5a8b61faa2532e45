"""
Time and memory of the density of an implicit process against the number of inputs.

CPU seconds of ``log_prob`` and of its gradient, the smaller of two, and the growth of the peak
memory of the process, the sizes in ascending order. "pairs" is what one matrix of all pairs would
take.
The functions are sines of random phase, cheap beside the density itself. The last line is the
slope of time in a log-log plot over the sizes from 10 000 on: 1 is linear.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import fixed_seed, format_table, parse, parser, positive, stopwatch
from benchmarks.records import write_record
from pyro_implicit import ImplicitProcess

SIZES = (1_000, 10_000, 100_000, 300_000, 1_000_000)
ROUNDS = 2


def waves(scale: Tensor) -> Any:
    """A prior with one parameter."""

    def prior(x: Tensor, num_functions: int) -> Tensor:
        return scale * torch.sin(x[:, 0] + 6 * torch.rand(num_functions, 1))

    return prior


def measure(num_rows: int, num_functions: int) -> dict[str, float]:
    """
    :param int num_rows: inputs N.
    :param int num_functions: functions S.
    :returns: seconds of the density and of density and gradient, and the peak memory in bytes.
    """
    x, y = torch.randn(num_rows, 1), torch.zeros(num_rows)
    scale = torch.tensor(1.0, requires_grad=True)
    seconds: dict[str, list[float]] = {"forward": [], "gradient": []}
    for _ in range(ROUNDS):
        with stopwatch() as watch, torch.no_grad():
            ImplicitProcess(waves(scale), x, num_functions, 0.3).log_prob(y)
        seconds["forward"].append(watch.cpu_seconds)
        with stopwatch() as watch:
            ImplicitProcess(waves(scale), x, num_functions, 0.3).log_prob(y).backward()
        seconds["gradient"].append(watch.cpu_seconds)
    return {k: min(v) for k, v in seconds.items()} | {"peak": peak_bytes()}


def peak_bytes() -> float:
    """The most memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Of a straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each size; "pairs" is what one matrix of all pairs would take."""
    header = ["S", "N", "log_prob s", "with gradient s", "memory growth MB", "pairs MB"]
    lines = [
        [
            *(row[key] for key in ("S", "N", "forward", "gradient")),
            row["growth"] // 10**6,
            8 * row["N"] ** 2 // 10**6,
        ]
        for row in rows
    ]
    return format_table(header, lines)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--sizes", type=positive, nargs="+", default=list(SIZES), metavar="N")
    options.add_argument("--num-functions", type=positive, nargs="+", default=[20])
    arguments = parse(options, argv)
    rows: list[dict[str, Any]] = []
    with fixed_seed(arguments.seeds[0]):
        measure(100, 5)  # libraries are loaded
        for count in arguments.num_functions:
            for size in sorted(arguments.sizes):
                before = peak_bytes()
                found = measure(size, count)
                growth = found.pop("peak") - before
                rows.append({"S": count, "N": size, **found, "growth": growth})
    print(table(rows))
    for count in arguments.num_functions:
        large = [r for r in rows if r["S"] == count and r["N"] >= 10_000]
        if len(large) > 1:
            found = slope([r["N"] for r in large], [r["gradient"] for r in large])
            print(f"S = {count}: time grows as N to the power {found:.2f}")
    write_record("process_cost", arguments, {"rounds": ROUNDS}, rows)
    return rows


if __name__ == "__main__":
    main()
