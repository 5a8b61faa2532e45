"""Which generator is nearest to the posterior at equal time, and which folds?"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import pyro
import torch
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser
from benchmarks.posterior._generators_methods import METHODS, SETTINGS, fit, measure
from benchmarks.posterior._generators_targets import TARGETS, Target, load
from benchmarks.records import write_record

DESCRIPTION = """\
Fits each guide to each target for the same CPU time with the same optimiser (ClippedAdam, one
learning rate that falls geometrically, 32 draws, vectorised) in float64, without init_loc_fn.
Steps of our guides are recorded, as fit records them; Pyro's objectives offer nothing alike.
The networks' split of the data is the seed modulo 3.

perceptron               HyperNetworkGuide(model, hidden_dims=(40, 40), init_from=None)
residual, K = 1, 4, 8    generator=ResidualGenerator of that many blocks, init_from=None
bijective residual       generator=BijectiveGenerator, init_from=None
autoregressive           the default HyperNetworkGuide(model), its automatic start included
..., bare                with init_from=None
..., Laplace             with init_from="laplace"
Pyro: couplings          AutoNormalizingFlow of four affine couplings, order reversed in between
Pyro: ...                Pyro's guides as they are, with Trace_ELBO

The true divergence: in the plane from 20 000 draws by nearest neighbours (Kozachenko-Leonenko);
elsewhere what is claimed, plus what entropy_report says the linearised entropy is too high by."""

#: CPU seconds of a fit, by the kind of the target
SECONDS = {
    "plane": 12.0,
    "dependent": 12.0,
    "hierarchical": 6.0,
    "regression": 4.0,
    "network": 8.0,
}
KINDS = {
    **dict.fromkeys(["banana", "X", "two modes", "two modes, 1:4", "ring"], "plane"),
    **dict.fromkeys(["funnel", "ten bananas"], "dependent"),
    **dict.fromkeys(["eight schools", "eight schools, centred", "horseshoe"], "hierarchical"),
    **dict.fromkeys(["kidscore_momiq", "arK", "blr", "nes1980"], "regression"),
    **dict.fromkeys(["concrete", "energy"], "network"),
}
#: nats that a claim may be too low by without a warning
TOLERANCE = 0.05
NUM_SPLITS = 3  # of the networks' data
#: what scores are compared with
REFERENCE = "Pyro: AutoMultivariateNormal"
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, methods=METHODS)
    options.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    options.add_argument(
        "--effort",
        type=float,
        default=1.0,
        metavar="F",
        help="factor on the CPU times (default: 1)",
    )
    options.add_argument(
        "--once",
        nargs="+",
        choices=METHODS,
        default=[],
        metavar="METHOD",
        help="methods that are fitted with the first seed alone",
    )
    options.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="fits at a time, each on its own core (default: 1)",
    )
    arguments = parse(options, argv)
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("generators", arguments, _settings(arguments), rows)
    print(table(rows))
    return rows


def _settings(arguments: Namespace) -> dict[str, Any]:
    seconds = {kind: value * arguments.effort for kind, value in SECONDS.items()}
    return {**SETTINGS, "cpu_seconds": seconds, "dtype": "float64"}


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each seed, target and method, in this order; those run once come last."""
    often = [method for method in arguments.methods if method not in arguments.once]
    todo = list(product(arguments.seeds, arguments.targets, often))
    todo += product(arguments.seeds[:1], arguments.targets, arguments.once)
    one = partial(_one, arguments=arguments)
    bar = partial(tqdm, total=len(todo), disable=arguments.quiet)
    if arguments.processes == 1:
        _warm_up(arguments)
        yield from bar(map(one, todo))
        return
    with ProcessPoolExecutor(
        arguments.processes, get_context("spawn"), _warm_up, (arguments,)
    ) as pool:
        yield from bar(pool.map(one, todo))


def _warm_up(arguments: Namespace) -> None:
    """Imports and compiles what each method needs."""
    torch.set_num_threads(arguments.threads)
    for method in arguments.methods:
        _one((0, "banana", method), arguments, warm_up=True)


def _one(which: tuple[int, str, str], arguments: Namespace, *, warm_up: bool = False) -> Row:
    seed, name, method = which
    seconds = 0.0 if warm_up else arguments.effort * SECONDS[KINDS[name]]
    row: Row = {"target": name, "method": method, "seed": seed}
    with fixed_seed(seed, torch.float64), pyro.validation_enabled(False):
        split = seed % NUM_SPLITS if KINDS[name] == "network" else 0
        target = _target(name, split, arguments)
        try:
            guide, effort = fit(target, method, seconds)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            return row | {"note": f"no fit: {type(error).__name__}"}
        found = measure(target, method, guide)
        if not math.isfinite(found["claimed_elbo"]):
            return row | {"note": "no fit: its bound is not finite"}
        return row | effort | found


_LOADED: dict[tuple[Any, ...], Target] = {}


def _target(name: str, split: int, arguments: Namespace) -> Target:
    settings = {**SETTINGS, "split": split}
    key = (name, arguments.data_root, SETTINGS["num_gibbs"], split)
    if key not in _LOADED:
        _LOADED[key] = load(name, arguments.data_root, settings)
    return _LOADED[key]


# ---- tables


def table(rows: list[Row]) -> str:
    """A line for each target and method: means over seeds, of errors the worst."""
    header = ["target", "method", "fits", "KL", "claimed KL", "mean: worst error"]
    header += [
        "sd: worst error",
        "test log-lik.",
        "rarer sign",
        "excess",
        "warned",
        "steps",
        "CPU s",
    ]
    lines = []
    for name, method in dict.fromkeys((r["target"], r["method"]) for r in rows):
        group = [r for r in rows if (r["target"], r["method"]) == (name, method)]
        fits = [r for r in group if "steps" in r]
        lines.append([name, method, f"{len(fits)} of {len(group)}", *_cells(fits)])
    return format_table(header, lines)


def _cells(fits: list[Row]) -> list[Any]:
    if not fits:
        return [None] * 10
    warned = f"{sum(r['warned'] for r in fits)} of {len(fits)}"
    return [
        _mean(fits, "kl"),
        _mean(fits, "claimed_kl"),
        _worst(fits, "mean_error", "{:.2f}"),
        _worst(fits, "sd_error", "{:.0%}"),
        _mean(fits, "log_likelihood"),
        _worst(fits, "minority", "{:.1%}"),
        _worst(fits, "excess", "{:.3f}"),
        warned,
        f"{statistics.fmean(r['steps'] for r in fits):.0f}",
        f"{statistics.fmean(r['cpu_seconds'] for r in fits):.1f}",
    ]


def _values(fits: list[Row], key: str) -> list[float]:
    return [r[key] for r in fits if r.get(key) is not None]


def _mean(fits: list[Row], key: str) -> str | None:
    """With the standard deviation over seeds, where there are several."""
    values = _values(fits, key)
    if not values:
        return None
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def _worst(fits: list[Row], key: str, form: str) -> str | None:
    values = _values(fits, key)
    return form.format(max(values)) if values else None


def _wide(rows: list[Row], cell: Callable[[list[Row]], str | None]) -> str:
    """A line for each method, a column for each target that has a cell."""
    methods = dict.fromkeys(r["method"] for r in rows)
    groups = {(r["target"], r["method"]): [] for r in rows}
    for row in rows:
        groups[row["target"], row["method"]].append(row)
    found = {key: _cell(group, cell) for key, group in groups.items()}
    targets = [
        name
        for name in dict.fromkeys(r["target"] for r in rows)
        if any(value not in (None, "no fit") for (t, _), value in found.items() if t == name)
    ]
    lines = [[method, *(found.get((name, method)) for name in targets)] for method in methods]
    return format_table(["method", *targets], lines)


def _cell(group: list[Row], cell: Callable[[list[Row]], str | None]) -> str | None:
    fits = [r for r in group if "steps" in r]
    return cell(fits) if fits else "no fit"


def divergences(rows: list[Row]) -> str:
    """True divergences, means over seeds and their deviation."""
    return _wide(rows, lambda fits: _mean(fits, "kl"))


def claims(rows: list[Row]) -> str:
    """The largest amount, over seeds, by which a claim was too low, starred where all that were
    above the tolerance came with a warning."""

    def cell(fits: list[Row]) -> str | None:
        over = [r for r in fits if r.get("excess") is not None]
        if not over:
            return None
        worst = max(over, key=lambda r: r["excess"])
        told = all(r["warned"] for r in over if r["excess"] > TOLERANCE)
        star = "*" if worst["excess"] > TOLERANCE and told else ""
        return f"{worst['excess']:.3f}{star}"

    return _wide(rows, cell)


def moments(rows: list[Row]) -> str:
    """Worst error of a mean, and of a deviation, over parameters and seeds."""

    def cell(fits: list[Row]) -> str | None:
        mean = _worst(fits, "mean_error", "{:.2f}")
        return mean and f"{mean}; {_worst(fits, 'sd_error', '{:.0%}')}"

    data = [r for r in rows if KINDS[r["target"]] in ("hierarchical", "regression")]
    return _wide(data, cell)


def evidence(rows: list[Row]) -> str:
    """What the bound is claimed to be, for posteriors of data."""
    data = [r for r in rows if KINDS[r["target"]] not in ("plane", "dependent")]
    return _wide(data, lambda fits: f"{statistics.fmean(_values(fits, 'claimed_elbo')):.2f}")


def scores(rows: list[Row]) -> str:
    """Mean log predictive density of held-out rows, on split 0 alone where seeds are of several."""
    return _wide([r for r in rows if r["seed"] % NUM_SPLITS == 0], _mean_score)


def _mean_score(fits: list[Row]) -> str | None:
    return _mean(fits, "log_likelihood")


def paired_scores(rows: list[Row]) -> str:
    """Log predictive densities over those of :data:`REFERENCE`, by seed and split."""
    known = {
        (r["target"], r["seed"]): r["log_likelihood"]
        for r in rows
        if r["method"] == REFERENCE and r.get("log_likelihood") is not None
    }
    paired = [
        r | {"gain": r["log_likelihood"] - known[r["target"], r["seed"]]}
        for r in rows
        if r.get("log_likelihood") is not None and (r["target"], r["seed"]) in known
    ]
    return _wide(paired, lambda fits: _mean(fits, "gain"))
