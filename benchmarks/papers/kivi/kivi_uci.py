"""
The regression experiment of Kernel Implicit Variational Inference, with its controls.

50 rectified hidden units, N(0, 1) priors, a Gamma(6, 6) prior on the precision of the standardised
targets; guides factorised by layer with the perceptrons of appendix D.1 and a log-normal for the
precision; canonical splits.

mean-field  AutoNormal for the weights
no KL       the generators of the paper without a KL term of the weights; the precision keeps its
published   KernelDensityRatioELBO(published=True)
adaptive    KernelDensityRatioELBO, its defaults

"claimed KL" is what the objective takes the KL term for; "forced KL" what the means and variances
of the weights alone force, were they independent Gaussians. All fits have the same number of steps
and all generators the same learning rate, chosen on held-out training rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pyro
from tqdm.auto import tqdm

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.kivi._kivi_uci import (
    LR,
    MEAN_FIELD_LR,
    METHODS,
    NUM_PARTICLES,
    NUM_SAMPLES,
    build_model,
    fit,
    marginal_kl,
)
from benchmarks.papers.kivi._kivi_uci import draw as draw_latents
from benchmarks.records import write_record
from benchmarks.shared.uci import load_split, score

SETS = ("boston", "concrete", "energy")
#: Table 1 of the paper, 20 random splits
PAPER = {
    "boston": ("2.88 ± 0.13", "-2.60 ± 0.09"),
    "concrete": ("4.88 ± 0.12", "-3.12 ± 0.05"),
    "energy": ("0.58 ± 0.02", "-1.34 ± 0.01"),
}
SETTINGS = {
    "lr": LR,
    "mean_field_lr": MEAN_FIELD_LR,
    "num_particles": NUM_PARTICLES,
    "num_samples": NUM_SAMPLES,
}


def run(arguments: Any, name: str, split_index: int, method: str, seed: int) -> dict[str, Any]:
    """One fit, scored on the test part."""
    split = load_split(arguments.data_root, name, split_index)
    model = build_model(split.x.shape[1], len(split.x))
    with fixed_seed(seed), pyro.validation_enabled(False):
        with stopwatch() as watch:
            guide, claimed = fit(model, split, method, arguments.num_steps, arguments.quiet)
        draws = draw_latents(guide)
        scores = score(model, draws, split)
    return {
        "set": name,
        "split": split_index,
        "seed": seed,
        "method": method,
        **scores,
        "claimed_kl": claimed,
        "forced_kl": marginal_kl(draws),
        "cpu_seconds": watch.cpu_seconds,
    }


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--sets", nargs="+", default=list(SETS), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(5)), metavar="K")
    options.add_argument("--num-steps", type=positive, default=1000, help="(default: 1000)")
    arguments = parse(options, argv)
    jobs = [
        (name, split, method, seed)
        for name in arguments.sets
        for split in arguments.splits
        for method in arguments.methods
        for seed in arguments.seeds
    ]
    rows: list[dict[str, Any]] = []
    for job in tqdm(jobs, disable=arguments.quiet):
        rows.append(run(arguments, *job))
        settings = SETTINGS | {"num_steps": arguments.num_steps}
        write_record("kivi_uci", arguments, settings, rows)
    print(table(rows))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over splits and seeds, beside the paper's row."""
    lines = []
    for name in dict.fromkeys(row["set"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows):
            same = [r for r in rows if (r["set"], r["method"]) == (name, method)]
            keys = ("rmse", "log_likelihood", "coverage", "claimed_kl", "forced_kl", "cpu_seconds")
            cells = [_mean([row[key] for row in same if row[key] is not None]) for key in keys]
            lines.append([name, method, len(same), *cells])
        if name in PAPER:
            lines.append([name, "paper (KIVI)", None, *PAPER[name], "", "", "", ""])
    header = ["set", "method", "fits", "RMSE", "log-lik.", "90% coverage"]
    return format_table([*header, "claimed KL", "forced KL", "CPU s"], lines)


def _mean(values: list[float]) -> str:
    if not values:
        return ""
    digits = 0 if abs(statistics.fmean(values)) > 20 else 2
    return mean_and_error(values, f".{digits}f")


if __name__ == "__main__":
    main()
