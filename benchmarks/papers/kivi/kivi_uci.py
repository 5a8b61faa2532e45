"""
The regression experiment of Kernel Implicit Variational Inference, with its controls.

50 rectified hidden units (protein: 100), N(0, 1) priors, a Gamma(6, 6) prior on the precision of
the standardised targets; guides factorised by layer with the perceptrons of appendix D.1 and a
log-normal for the precision; canonical splits; minibatches of 500 for sets above 2000 rows.

map         Adam on the log-joint
ensemble    five of these, from starts of their own
MC dropout  one of these of a network that leaves hidden units out, which it goes on with
SWAG        a Gaussian by the path of SGD on 50 rows from one of these, as many steps again
mean-field  AutoNormal for the weights
no KL       the generators of the paper without a KL term of the weights; the precision keeps its
published   KernelDensityRatioELBO(published=True)
adaptive    KernelDensityRatioELBO, its defaults

"claimed KL" is what the objective takes the KL term for; "forced KL" what the means and variances
of the weights alone force, were they independent Gaussians. All fits have the same number of steps
and all generators the same learning rate, chosen on held-out training rows (--validation).
"""

from __future__ import annotations

import math
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
    CONTROLS,
    LR,
    MEAN_FIELD_LR,
    MODE_LR,
    MODE_LR_LARGE,
    MODES,
    NUM_PARTICLES,
    NUM_SAMPLES,
    OBJECTIVES,
    build_model,
    fit,
    fit_control,
    fit_modes,
    marginal_kl,
    num_hidden,
)
from benchmarks.papers.kivi._kivi_uci import draw as draw_latents
from benchmarks.records import write_record
from benchmarks.shared.paired import ahead, pairs
from benchmarks.shared.uci import load_split, score

#: Table 1 of the paper, "Implicit VI (KDRF)": RMSE and log-likelihood of 20 random splits, of
#: protein 5
PAPER = {
    "boston": ("2.875 ± 0.133", "-2.598 ± 0.086"),
    "concrete": ("4.881 ± 0.124", "-3.116 ± 0.047"),
    "energy": ("0.583 ± 0.019", "-1.339 ± 0.006"),
    "kin8nm": ("0.075 ± 0.001", "1.162 ± 0.008"),
    "naval": ("0.001 ± 0.000", "5.434 ± 0.167"),
    "power": ("4.010 ± 0.035", "-2.800 ± 0.008"),
    "protein": ("4.320 ± 0.012", "-2.883 ± 0.003"),
    "wine": ("0.637 ± 0.007", "-0.962 ± 0.011"),
    "yacht": ("0.654 ± 0.058", "-2.084 ± 0.006"),
}
METHODS = (*MODES, *CONTROLS, *OBJECTIVES)
SETTINGS = {
    "lr": LR,
    "mean_field_lr": MEAN_FIELD_LR,
    "mode_lr": MODE_LR,
    "mode_lr_large": MODE_LR_LARGE,
    "num_particles": NUM_PARTICLES,
    "num_samples": NUM_SAMPLES,
    "controls": CONTROLS,
}


def run(arguments: Any, name: str, split_index: int, method: str, seed: int) -> dict[str, Any]:
    """One fit, scored on the test part (or on validation rows)."""
    held = arguments.validation
    split = load_split(arguments.data_root, name, split_index, validation=held)
    hidden = num_hidden(name)
    model = build_model(split.x.shape[1], len(split.x), hidden)
    claimed = forced = None
    how = (arguments.num_steps, arguments.quiet, hidden)
    with fixed_seed(seed), pyro.validation_enabled(False):
        with stopwatch() as watch:
            if method in MODES:
                draws = fit_modes(model, split, MODES[method], *how)
            elif method in CONTROLS:
                first, others = CONTROLS[method]
                draws = fit_control(model, split, method, others.get(name, first), *how)
            else:
                guide, claimed = fit(model, split, method, *how)
        if method in OBJECTIVES:
            draws = draw_latents(guide, hidden)
            forced = marginal_kl(draws)
        scores = score(model, draws, split)
    return {
        "set": name,
        "split": split_index,
        "seed": seed,
        "method": method,
        **scores,
        "claimed_kl": claimed,
        "forced_kl": forced,
        "cpu_seconds": watch.cpu_seconds,
    }


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--sets", nargs="+", default=list(PAPER), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(5)), metavar="K")
    options.add_argument("--num-steps", type=positive, default=1000, help="(default: 1000)")
    options.add_argument(
        "--validation", action="store_true", help="15%% of the training part held out"
    )
    arguments = parse(options, argv)
    jobs = [
        (name, split, method, seed)
        for split in arguments.splits
        for name in arguments.sets
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


def differences(rows: list[dict[str, Any]]) -> str:
    """
    Of adaptive to each other method, and of published to no KL, paired over splits and seeds; ahead
    is who has the higher log-likelihood.
    """
    names = list(dict.fromkeys(row["set"] for row in rows))
    places: dict[str, Any] = {"group": "set", "units": ("split", "seed")}
    lines = [
        [name, "adaptive", method, *_change([(mine, row) for row, mine in both])]
        for (name, method), both in pairs(rows, "adaptive", **places)
    ]
    published = [row for row in rows if row["method"] in ("published", "no KL")]
    lines += [
        [name, method, "no KL", *_change(both)]
        for (name, method), both in pairs(published, "no KL", **places)
    ]
    lines.sort(key=lambda line: names.index(line[0]))
    return format_table(["set", "method", "less", "RMSE", "log-lik.", "splits ahead"], lines)


def _change(both: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    gains = [a["log_likelihood"] - b["log_likelihood"] for a, b in both]
    errors = [a["rmse"] - b["rmse"] for a, b in both]
    form = f".{_decimals([a['rmse'] for a, _ in both]) + 1}f"
    return [
        mean_and_error(errors, f"+{form}", form),
        mean_and_error(gains, "+.3f", ".3f"),
        ahead(gains),
    ]


def _mean(values: list[float]) -> str:
    return mean_and_error(values, f".{_decimals(values)}f") if values else ""


def _decimals(values: list[float]) -> int:
    """For three digits of the mean."""
    size = abs(statistics.fmean(values))
    return max(0, 2 - math.floor(math.log10(size))) if size else 2


if __name__ == "__main__":
    main()
