"""
Classification with an implicit process, which the paper on variational implicit processes leaves
to later work: its weight-space form (Eq. 10 and 11 there) under a categorical likelihood.

Breast cancer (30 inputs, 2 classes) and digits (64, 10), as scikit-learn has them, and 1000 images
of MNIST (784, 10), another draw of parts for each seed: 60% to fit, 15% to stop early, the others
to test (MNIST: four fifths and one fifth, and the first 1000 test images). The network is
D-50-50-C.

process, alpha    random weights as the prior, whose means and scales are trained; 20 frozen
                  functions, own coefficients for each class, a joint Gaussian of all coefficients;
                  AlphaEnergy of 16 draws
mean-field        of the weights of the same network; prior N(0, k^2 / inputs of the layer), k of 3,
                  10 and 30 by the held rows
MAP               the same network and priors
ensemble of 5     of these
sparse GP         Pyro's variational one, softmax of a function for each class, 100 inducing inputs
GP, Laplace       scikit-learn's, each class against the rest, on at most 400 rows

All but the last: Adam on minibatches of 250, at most --num-steps of them, early stopping by the
likelihood of the held rows. Predictions are means of probabilities over 200 draws.

--choose tells how well learning rates do on rows that no seed tests: four fifths of them to fit,
one to choose by (MNIST: other images for training); one fit each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pyro
from tqdm.auto import trange

from benchmarks.common import fixed_seed, format_table, parse, parser, positive, stopwatch
from benchmarks.papers.vip._class_choice import choose, rates
from benchmarks.papers.vip._class_fits import METHODS, SETTINGS
from benchmarks.papers.vip._classes import OTHERS, SETS, load_task, scores
from benchmarks.papers.vip._paired import mean_cell, paired
from benchmarks.records import write_record

BASE = "process, alpha=0.5"
_SCORES = {
    "accuracy": "accuracy",
    "NLL": "nll",
    "ECE": "ece",
    "AUROC": "auroc",
    **{f"AUROC, {name}": f"auroc {name}" for name in OTHERS},
}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    rows: list[dict[str, Any]] = []
    if arguments.choose:
        for name in arguments.sets:
            rows += choose(arguments, arguments.data_root, name)
            write_record("vip_classification", arguments, SETTINGS, rows)
        print(rates(rows))
        return rows
    for seed in arguments.seeds:
        for name in arguments.sets:
            task = load_task(arguments.data_root, name, seed, arguments.num_images)
            for method in arguments.methods:
                steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
                with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                    predict, count = METHODS[method](task, steps)
                row = {"set": name, "method": method, "seed": seed, "steps": count}
                row |= {"cpu_seconds": watch.cpu_seconds, **scores(predict, task)}
                if not math.isfinite(row["nll"]):
                    raise SystemExit(f"error: {method} on {name} has diverged")
                rows.append(row)
                write_record("vip_classification", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors."""
    lines = []
    for name, method in dict.fromkeys((row["set"], row["method"]) for row in rows):
        own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        known = [[row[key] for row in own if row[key] is not None] for key in _SCORES.values()]
        steps = [row["steps"] for row in own if row["steps"] is not None]
        seconds = statistics.fmean(row["cpu_seconds"] for row in own)
        tail = [f"{statistics.fmean(steps):.0f}" if steps else None, f"{seconds:.0f}"]
        lines.append([name, method, len(own), *(mean_cell(one) for one in known), *tail])
    return format_table(["set", "method", "seeds", *_SCORES, "steps", "CPU s"], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """To the process with alpha 0.5, on the same parts."""
    keys = {"accuracy": "accuracy", "ECE": "ece", "AUROC": "auroc", "NLL": "nll"}
    return paired(rows, BASE, group="set", keys=keys)


def _options() -> Any:
    options = parser(__doc__ or "", seeds=range(3), methods=METHODS)
    options.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options.add_argument("--num-steps", type=positive, default=400, help="at most (default: 400)")
    options.add_argument(
        "--num-images", type=positive, default=1000, metavar="N", help="of MNIST (default: 1000)"
    )
    options.add_argument("--choose", action="store_true", help="see above")
    return options


if __name__ == "__main__":
    main()
