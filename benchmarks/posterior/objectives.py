"""
The same small posteriors by every objective of the family, with its controls.

mixture   modes at -3 and 3 in one dimension
unequal   the same in proportion 1 to 4
x-shape   two crossed Gaussians of correlation 0.9 and -0.9
logistic  2-D Bayesian logistic regression, 200 points, correlated inputs; NUTS beside it
banana    a curved density in the plane
student-t heavy tails in the plane, correlation 0.9
waveform  22-D logistic regression on Breiman's waveforms, 400 rows; NUTS beside it
diffusion 100-D path of a stochastic differential equation seen at 20 times; NUTS beside it

Columns: Wasserstein-1 distance of draws to exact ones; KL divergence of the Gaussians of their
moments; KL(q || posterior) as the objective claims it (true log-evidence minus its value, mean of
the last 100 steps) and as it is (by nearest neighbours, 10 000 draws). The last two targets are
known by the moments of long chains alone (--reference makes them): root mean squares of the errors
of means (in deviations), log-deviations and correlations, and the objective's value. Settings of
objectives are their defaults; the guide is the default HyperNetworkGuide for all but Pyro's own.

--instability trains Bayesian networks of 61 and 673 weights instead, and tells how the estimated
KL(q || p) of neighbouring steps differs between a logistic-regression critic, the default critic
and kernels, and what the means and variances of the weights alone force.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from typing import Any

import pyro
from torch import Tensor

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.posterior._objectives_figure import draw_curves, draw_sets
from benchmarks.posterior._objectives_fits import AT_EQUAL_TIME, METHODS, fit, nuts
from benchmarks.posterior._objectives_instability import ESTIMATES, NETWORKS, track
from benchmarks.posterior._objectives_references import (
    REFERENCE_SETTINGS,
    REFERENCED,
    reference,
)
from benchmarks.posterior._objectives_targets import SETTINGS, TARGETS, Target
from benchmarks.records import write_record
from benchmarks.shared.paired import ahead, pairs

COLUMNS = {
    "right": "right of 0",
    "bridge": "bridge",
    "w1": "W1",
    "mean_error": "mean error",
    "sd_error": "log-sd error",
    "correlation_error": "correlation error",
    "gaussian_kl": "Gaussian KL",
    "bound": "value",
    "claimed_kl": "claimed KL",
    "true_kl": "true KL",
    "steps": "steps",
    "cpu_seconds": "CPU s",
    "peak_mb": "memory, MB",
}
_FORMS = {"bound": ".4g"}
LAST = 100
ALL = TARGETS | REFERENCED
WITH_NUTS = ("logistic", *REFERENCED)
#: steps that no CPU time that is given here suffices for
_MANY = 1_000_000


def run(
    target: Target, method: str, seed: int, num_steps: int, quiet: bool, cpu_seconds: float = 0.0
) -> tuple[dict[str, Any], Tensor | None]:
    """One fit: its row, and its draws unless it failed."""
    row: dict[str, Any] = {"target": target.name, "method": method, "seed": seed}
    draws = None
    with fixed_seed(seed), pyro.validation_enabled(False):
        try:
            if method == "NUTS":
                with stopwatch() as watch:
                    draws = nuts(target, num_steps, quiet)
                found: dict[str, Any] = {"note": "", "cpu_seconds": watch.cpu_seconds}
            else:
                steps = _MANY if cpu_seconds else num_steps
                draws, found = fit(target, method, steps, quiet, cpu_seconds)
            row |= target.errors(draws) | found
        except (ArithmeticError, RuntimeError, ValueError) as error:
            row["note"] = f"{type(error).__name__}: {str(error)[:80]}"
    return row, draws


def compare(arguments: Any) -> list[dict[str, Any]]:
    """All fits; the figure shows those of the last seed."""
    rows, sets = [], {}
    for name in arguments.targets:
        target = ALL[name]()
        if name in TARGETS:
            sets[name] = {"exact": target.exact(1000)}
        jobs = [(method, seed) for method in arguments.methods for seed in arguments.seeds]
        if arguments.nuts and name in WITH_NUTS:
            jobs += [("NUTS", seed) for seed in arguments.seeds]
        for method, seed in jobs:
            steps = arguments.nuts if method == "NUTS" else arguments.num_steps
            budget = arguments.cpu_seconds
            row, draws = run(target, method, seed, steps, arguments.quiet, budget)
            rows.append(row)
            if draws is not None and name in sets:
                sets[name][method] = draws
            settings = SETTINGS | {"num_steps": arguments.num_steps}
            write_record("objectives", arguments, settings, rows)
        print(f"\n{name}\n\n{table([row for row in rows if row['target'] == name])}")
    if arguments.figure is not None:
        draw_sets(arguments.figure, sets)
    return rows


def instability(arguments: Any) -> list[dict[str, Any]]:
    """The KL term at every step, and its spread over the last ones."""
    rows, curves = [], {}
    for seed, weights, name in product(arguments.seeds, arguments.weights, ESTIMATES):
        with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
            curve, forced = track(name, weights, arguments.num_steps, arguments.quiet)
        curves[weights, name] = curve
        last = curve[-LAST:]
        steps = [b - a for a, b in zip(last, last[1:], strict=False)]
        row = {"weights": weights, "estimate": name, "seed": seed, "mean": statistics.fmean(last)}
        row |= {"sd": statistics.pstdev(last), "lowest": min(curve), "forced": forced}
        row["sd_of_change"] = statistics.pstdev(steps) if steps else 0.0
        rows.append(row | {"cpu_seconds": watch.cpu_seconds})
        write_record("objectives", arguments, {"num_steps": arguments.num_steps}, rows)
    print(spreads(rows))
    if arguments.figure is not None:
        draw_curves(arguments.figure, curves)
    return rows


def references(arguments: Any) -> list[dict[str, Any]]:
    """The moments that others are held to."""
    rows = []
    for name in REFERENCED:
        rows.append(reference(REFERENCED[name](), (1, 2, 3, 4), arguments.quiet))
        write_record("objectives", arguments, REFERENCE_SETTINGS, rows)
    print(chains(rows))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds; the range if there are several."""
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        same = [row for row in rows if row["method"] == method]
        cells = [_cell([row.get(key) for row in same], _FORMS.get(key, ".3g")) for key in keys]
        notes = "; ".join(dict.fromkeys(row["note"] for row in same if row["note"]))
        lines.append([method, len(same), *cells, notes])
    return format_table(["method", "seeds", *(COLUMNS[key] for key in keys), "notes"], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """
    Of the true KL divergence and W1 of each method to the adaptive kernels', seed by seed; to the
    linearised entropy's where those were not run.
    """
    adaptive = any(row["method"] == "kernel adaptive" for row in rows)
    base = "kernel adaptive" if adaptive else "linearised"
    lines = []
    for names, found in pairs(rows, base):
        changes = [[a[key] - b[key] for a, b in found] for key in ("w1", "true_kl")]
        cells = [mean_and_error(one, "+.3f", ".3f") for one in changes]
        lines.append([*names, *cells, ahead([-change for change in changes[1]])])
    return format_table([f"method less {base}", "W1", "true KL", "seeds nearer"], lines)


def chains(rows: list[dict[str, Any]]) -> str:
    """How good the references are: the worst coordinate's r-hat and effective draws."""
    header = ["target", "draws", "r-hat", "effective draws", "CPU s"]
    forms = {"r_hat": ".4f", "effective": ".0f", "cpu_seconds": ".0f"}
    lines = [
        [row["target"], row["draws"], *(f"{row[key]:{form}}" for key, form in forms.items())]
        for row in rows
    ]
    return format_table(header, lines)


def spreads(rows: list[dict[str, Any]]) -> str:
    """Of the estimates of the KL term: means over seeds, with their standard errors."""
    columns = {
        "mean": f"mean of last {LAST}",
        "forced": "forced",
        "lowest": "lowest",
        "sd": "sd",
        "sd_of_change": "sd of the change per step",
    }
    lines = []
    for weights, name in dict.fromkeys((row["weights"], row["estimate"]) for row in rows):
        own = [row for row in rows if (row["weights"], row["estimate"]) == (weights, name)]
        cells = []
        for key in columns:
            values = [row[key] for row in own]
            small = abs(statistics.fmean(values)) < 1
            cells.append(mean_and_error(values, ".2f" if small else ".1f"))
        lines.append([weights, name, len(own), *cells])
    return format_table(["weights", "estimate", "seeds", *columns.values()], lines)


def _cell(values: list[float | None], form: str) -> str:
    found = sorted(value for value in values if value is not None)
    if not found:
        return ""
    text = f"{statistics.fmean(found):{form}}"
    return text if len(found) == 1 else f"{text} ({found[0]:{form}} to {found[-1]:{form}})"


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", methods=METHODS, figure="draws, or KL by step")
    options.add_argument("--num-steps", type=positive, default=1500, help="(default: 1500)")
    options.add_argument(
        "--cpu-seconds",
        type=float,
        default=0.0,
        help="for each fit, in place of --num-steps; then of fewer --methods",
    )
    options.add_argument("--targets", nargs="+", choices=ALL, default=list(TARGETS))
    options.add_argument(
        "--nuts", type=int, default=1000, metavar="N", help="draws of NUTS, each seed; 0: none"
    )
    options.add_argument("--reference", action="store_true", help="long chains, of seeds 1 to 4")
    options.add_argument("--instability", action="store_true", help="see above")
    options.add_argument(
        "--weights", type=int, nargs="+", choices=NETWORKS, default=list(NETWORKS), help="of it"
    )
    arguments = parse(options, argv)
    if arguments.cpu_seconds and arguments.methods == list(METHODS):
        arguments.methods = list(AT_EQUAL_TIME)
    if arguments.reference:
        return references(arguments)
    return instability(arguments) if arguments.instability else compare(arguments)


if __name__ == "__main__":
    main()
