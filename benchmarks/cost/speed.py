"""
What is as fast as a loop by hand? One table of what was measured and of what is the goal.

A floor is a loop by hand of the same mathematics without Pyro. Times are CPU times of this process,
jobs of a group in turns, medians; every ratio is of two jobs of one group in one run. A goal is one
of the ratio where a row has a base, else of the milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tqdm.auto import tqdm

from benchmarks.common import format_table, parse, parser, positive
from benchmarks.cost._speed_growth import conditional, entropy, large
from benchmarks.cost._speed_lenet import lenet
from benchmarks.cost._speed_network import network
from benchmarks.cost._speed_predict import arviz, predictions
from benchmarks.cost._speed_schools import schools
from benchmarks.cost._speed_starts import starts
from benchmarks.cost._speed_steps import steps
from benchmarks.cost._speed_timing import Row
from benchmarks.records import write_record

SETTINGS: dict[str, Any] = {
    "targets": ("eight schools", "logistic regression", "network of 97 weights"),
    "num_draws": 8,
    "init_from": "auto",
    "tries": 5,
    "warm_up": 5,
    "network": "lenet",
    "guide": "B",
    "batch_sizes": (128, 256),
    "images": 1024,
    "image_batch": 256,
    "rows": 20_000,
    "row_batch": 1000,
    "few_rows": 200,
    "many_draws": 1000,
    "arviz_rows": 100_000,
    "arviz_draws": 100,
    "hidden_units": (10, 100, 200),
    "num_rows": 500,
    "context_sizes": (4, 100, 784),
    "context_rows": 128,
    "entropy_latents": 2000,
    "many_latents": 100_000,
    "fit_steps": None,
    "chain": (300, 500),
    "numpyro_chains": ((300, 500), (500, 5000)),
    "map_steps": 2000,
}
#: name -> its rows
PARTS: dict[str, Callable[..., Any]] = {
    "steps": steps,
    "lenet": lenet,
    "predict": predictions,
    "arviz": arviz,
    "starts": starts,
    "conditional": conditional,
    "entropy": entropy,
    "large": large,
    "network": network,
    "schools": schools,
}
#: parts whose rounds take long, and how many are enough
FEW = {"predict": 9, "arviz": 9, "large": 3}


def is_met(row: Row) -> bool | None:
    """Whether a row is inside its goal; None for one without."""
    if row["goal"] is None:
        return None
    value = row["cpu_ms"] if row["base"] is None else row["ratio"]
    return value is not None and value <= row["goal"]


def table(rows: list[Row]) -> str:
    """One line for each job."""
    header = ["what", "method", "CPU ms", "relative to", "ratio", "goal", "met", "note"]
    lines = []
    for row in rows:
        met = {None: "", True: "yes", False: "no"}[is_met(row)]
        ms = None if row["cpu_ms"] is None else _digits(row["cpu_ms"])
        ratio = None if row["ratio"] is None else f"{row['ratio']:.2f}"
        goal = None if row["goal"] is None else f"{row['goal']:g}{'' if row['base'] else ' ms'}"
        cells = [row["what"], row["method"], ms, row["base"], ratio, goal, met, row["note"]]
        lines.append(cells)
    return format_table(header, lines)


#: what a step is compared with in short, and the step
BESIDE = (("AutoNormal", "implicit, recorded, along the path"), ("MAP", "LanczosELBO(5)"))


def steps_in_short(rows: list[Row]) -> str:
    """What a step takes, beside that of mean-field or of ordinary training."""
    times = {(row["what"], row["method"]): row["cpu_ms"] for row in rows}
    lines = [
        [what, method, base, _digits(ms), f"{ms / times[what, base]:.1f}"]
        for (what, method), ms in times.items()
        for base, other in BESIDE
        if method == other and ms is not None and times.get((what, base))
    ]
    return format_table(["what", "method", "beside", "CPU ms", "ratio"], lines)


def _digits(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--rounds", type=positive, default=30, help="(default: 30)")
    arguments = parse(options, argv)
    rows: list[Row] = []
    for name in tqdm(arguments.parts, disable=arguments.quiet):
        part = PARTS[name]
        if name == "schools":
            part = partial(part, data_root=arguments.data_root)
        rounds = min(arguments.rounds, FEW.get(name, arguments.rounds))
        rows += part(SETTINGS, rounds, arguments.seeds[0])
        write_record("speed", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
