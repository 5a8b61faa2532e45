"""
Which check flags which guide: one that is right, and some that are wrong in a known way.

Every seed has a data set of its own, drawn from the model; the guide is made for it in closed form,
not trained, so that what is wrong with it is known. Levels are fixed: p < 0.05 for tests, the
threshold of k-hat for so many draws, 0.1 nats and three standard errors for a fold.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.records import write_record
from benchmarks.robustness._diagnostics_cases import CASES, Case, guide_of
from pyro_implicit import entropy_report
from pyro_implicit.diagnostics import c2st, khat, stein_discrepancy, vsbc
from pyro_implicit.exceptions import DensityError

CHECKS = ("entropy", "k-hat", "Stein", "SBC", "C2ST")
LEVEL = 0.05


def run(case: Case, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    """All checks of one guide for one data set; ``None`` for a number that was refused."""
    with fixed_seed(seed):
        y = case.data()
        guide = guide_of(case, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are counted, not shown
            report = entropy_report(guide, num_samples=100, num_inner=100)
        try:
            k = khat(case.model, guide, y, num_samples=sizes["draws"])
        except DensityError:
            k = None
        stein = stein_discrepancy(case.model, guide, y, num_samples=sizes["draws"])
        exact = case.draws(case.exact(y), sizes["draws"])
        told = c2st(case.draws(case.generator(y), sizes["draws"]), exact, seed=seed)

        def fit(data: dict[str, Any]) -> dict[str, Any]:
            return case.draws(case.generator(data["y"]), 99)

        ranks = vsbc(
            case.model, fit, y, num_simulations=sizes["simulations"], seed=seed, progress=False
        )
    return {
        "guide": case.name,
        "seed": seed,
        "excess": report.excess,
        "k-hat": None if k is None else k.value,
        "stein": stein.squared,
        "stein p": stein.p_value,
        "SBC p": ranks.p_value,
        "accuracy": told.accuracy,
        "C2ST p": told.p_value,
        "flags": {
            "entropy": report.folds,
            "k-hat": None if k is None else not k.is_good,
            "Stein": stein.p_value < LEVEL,
            "SBC": ranks.p_value < LEVEL,
            "C2ST": told.p_value < LEVEL,
        },
    }


def table(rows: list[dict[str, Any]]) -> str:
    """How often each check flagged each guide; a star where it should, by what is wrong."""
    by_guide: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_guide[row["guide"]].append(row)
    lines = []
    for name, found in by_guide.items():
        cells = []
        for check in CHECKS:
            flags = [row["flags"][check] for row in found]
            counted = [flag for flag in flags if flag is not None]
            star = "*" if check in CASES[name].wrong else ""
            refused = len(flags) - len(counted)
            note = f" ({refused} refused)" if refused else ""
            cells.append(f"{sum(counted)}/{len(counted)}{star}{note}")
        numbers = [
            _mean([row[key] for row in found]) for key in ("excess", "k-hat", "stein", "accuracy")
        ]
        lines.append([name, *cells, *numbers])
    header = ["guide", *CHECKS, "excess", "mean k-hat", "mean squared KSD", "mean accuracy"]
    return format_table(header, lines)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=range(20))
    options.add_argument("--guides", nargs="+", choices=list(CASES), default=list(CASES))
    options.add_argument("--draws", type=positive, default=300, help="(default: 300)")
    options.add_argument("--simulations", type=positive, default=100, help="(default: 100)")
    arguments = parse(options, argv)
    sizes = {"draws": arguments.draws, "simulations": arguments.simulations}
    jobs = [(name, seed) for seed in arguments.seeds for name in arguments.guides]
    rows = []
    for name, seed in tqdm(jobs, disable=arguments.quiet):
        rows.append(run(CASES[name](), seed, sizes))
        write_record("diagnostics_power", arguments, {"level": LEVEL}, rows)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
