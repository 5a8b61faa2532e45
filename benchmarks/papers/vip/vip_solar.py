"""
Solar irradiance with missing blocks (section 4.2 of the paper on variational implicit processes).

Yearly total irradiance, 1610 to 2000, five blocks of 20 years to fill in; years centred, targets
standardised by the years that are left. Scores are of the missing years, in standard deviations.
The prior is a 1-10-10-1 network with random weights.

as published   alpha=0, 20 frozen functions, Adam at 0.001 for 5000 steps, years not scaled
alpha=0        the same; scale of the years and number of steps chosen, Adam at 0.01
collapsed      marginal likelihood of 50 new functions at each step, 200 to predict; chosen likewise
exact GP       pyro.contrib.gp, kernel RBF + periodic, optimised; no seed changes it
sparse GP      the same kernel, by the variational bound of 30 inducing years
dropout        the network of vip_synthetic; years by the scale that alpha=0 chose
ensemble of 5  the network from five starts by maximum likelihood; chosen as alpha=0 is
mean-field     the network with normal weights, by the evidence bound; chosen likewise

Chosen on five other blocks of 14 years in the training years, in the middle between the missing
ones; the fit is then made anew on all training years.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.contrib.gp as gp
import torch
from tqdm.auto import trange

from benchmarks.common import (
    fixed_seed,
    format_table,
    load_npz,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.vip._paired import paired
from benchmarks.papers.vip._vip_curve import Prediction, dropout, network
from benchmarks.papers.vip._vip_fits import (
    Collapsed,
    Fit,
    Weights,
    interval_coverage,
    negative_log_likelihood,
    train,
)
from benchmarks.papers.vip._vip_peers import PEERS, Ensemble, MeanField
from benchmarks.records import write_record
from benchmarks.shared.bands import draw_bands
from pyro_implicit.processes import RandomNetwork

SETTINGS: dict[str, Any] = {
    "num_functions": {"weights": 20, "collapsed": 50, "prediction of collapsed": 200},
    "noise": 0.3,
    "rate": 0.01,
    "every": 50,
    "patience": 10,
    "scales": [5.0, 20.0, 100.0],
    "validation_block": 14,
    "published": {"rate": 0.001, "steps": 5000},
    "gp_steps": 400,
    "gp_rate": 0.05,
    "sparse GP, num_inducing": 30,
    "peers": PEERS,
    "dropout_steps": 2000,
}


class Data:
    """
    The series with its missing years.

    :ivar years: centred, ``(N, 1)``.
    :ivar y: standardised, ``(N,)``.
    :ivar kept: training years, a mask.
    :ivar chosen_by: validation years, a mask within ``kept``.
    """

    def __init__(self, data_root: Path) -> None:
        arrays = load_npz(data_root, "solar_tsi.npz")
        missing = arrays["test_mask_5x20"]
        self.kept = torch.tensor(~missing)
        year = torch.tensor(arrays["year"], dtype=torch.float32)
        y = torch.tensor(arrays["tsi_cycle_bkgrnd"], dtype=torch.float64)
        self.years = (year - year[self.kept].mean())[:, None]
        self.y = ((y - y[self.kept].mean()) / y[self.kept].std()).float()
        self.chosen_by = torch.tensor(validation_years(missing))


def validation_years(missing: np.ndarray) -> np.ndarray:
    """A block in the middle of each stretch of training years after a missing block."""
    edges = np.flatnonzero(np.diff(missing.astype(int)))
    ends = [*edges[2::2], len(missing) - 1]
    chosen = np.zeros(len(missing), dtype=bool)
    for start, end in zip(edges[1::2] + 1, ends, strict=True):
        first = (start + end - SETTINGS["validation_block"]) // 2 + 1
        chosen[first : first + SETTINGS["validation_block"]] = True
    return chosen


def published(data: Data, steps: Callable[[int], Any]) -> tuple[Prediction, dict[str, Any]]:
    """Nothing is chosen."""
    own = SETTINGS["published"]
    fit = _make("alpha=0")
    rows = (data.years[data.kept], data.y[data.kept])
    train(fit, rows, steps(own["steps"]), rate=own["rate"])
    with torch.no_grad():
        return fit.predict(*rows, data.years), {"steps": own["steps"], "scale": 1.0}


def chosen(kind: str, data: Data, steps: Callable[[int], Any]) -> tuple[Prediction, dict[str, Any]]:
    """Scale and steps by the validation years, then all training years."""
    fitted = data.kept & ~data.chosen_by
    tried = []
    seed = torch.initial_seed()
    for scale in SETTINGS["scales"]:
        torch.manual_seed(seed)
        x, fit = data.years / scale, _make(kind)
        rows, held = (x[fitted], data.y[fitted]), (x[data.chosen_by], data.y[data.chosen_by])

        def score(fit: Fit = fit, rows: Any = rows, held: Any = held) -> float:
            return negative_log_likelihood(held[1], fit.predict(*rows, held[0]))

        options = {"every": SETTINGS["every"], "patience": SETTINGS["patience"]}
        numbers = steps(2000)
        options["every"] = min(options["every"], len(numbers))
        count = train(fit, rows, numbers, rate=SETTINGS["rate"], score=score, **options)
        with torch.no_grad():
            tried.append((score(), scale, count))
    _, scale, count = min(tried)
    torch.manual_seed(seed)
    x, fit = data.years / scale, _make(kind)
    rows = (x[data.kept], data.y[data.kept])
    train(fit, rows, range(count), rate=SETTINGS["rate"])
    with torch.no_grad():
        return fit.predict(*rows, x), {"steps": count, "scale": scale}


def _make(kind: str) -> Fit:
    noise = SETTINGS["noise"]
    if kind == "ensemble of 5":
        return Ensemble(network, PEERS["num_members"], noise)
    if kind == "mean-field":
        return MeanField(network(), noise, **PEERS["mean-field"])
    counts, prior = SETTINGS["num_functions"], RandomNetwork(network())
    if kind == "collapsed":
        predictive = counts["prediction of collapsed"]
        return Collapsed(prior, noise, counts["collapsed"], predictive)
    return Weights(prior, noise, counts["weights"], 0.0)


def gaussian_process(
    data: Data, steps: Callable[[int], Any], num_inducing: int | None = None
) -> tuple[Prediction, dict[str, Any]]:
    """
    Pyro's, by the marginal likelihood, or its bound; years in centuries.

    :param num_inducing: inducing years, drawn from the training years; None: the exact process.
    """
    x = data.years / 100
    kernel = gp.kernels.Sum(
        gp.kernels.RBF(1, lengthscale=torch.tensor(0.2)),
        gp.kernels.Periodic(1, period=torch.tensor(0.11)),
    )
    rows, options = (x[data.kept], data.y[data.kept]), {"noise": torch.tensor(0.1), "jitter": 1e-4}
    if num_inducing is None:
        model: Any = gp.models.GPRegression(*rows, kernel, **options)
    else:
        inducing = rows[0][torch.randperm(len(rows[0]))[:num_inducing]]
        model = gp.models.SparseGPRegression(*rows, kernel, inducing, **options)
    numbers = steps(SETTINGS["gp_steps"])
    optimiser = torch.optim.Adam(model.parameters(), lr=SETTINGS["gp_rate"])
    gp.util.train(model, optimiser, num_steps=len(numbers))
    with torch.no_grad():
        mean, variance = model(x, full_cov=False, noiseless=False)
    return (mean, variance.sqrt()), {"steps": len(numbers), "scale": 100.0}


def by_dropout(
    data: Data, steps: Callable[[int], Any], scale: float = 20.0
) -> tuple[Prediction, dict[str, Any]]:
    """At training and at test."""
    x = data.years / scale
    numbers = steps(SETTINGS["dropout_steps"])
    prediction = dropout(x[data.kept], data.y[data.kept], x, numbers)
    return prediction, {"steps": len(numbers), "scale": scale}


METHODS: dict[str, Callable[..., tuple[Prediction, dict[str, Any]]]] = {
    "as published": published,
    "alpha=0": lambda *job: chosen("alpha=0", *job),
    "collapsed": lambda *job: chosen("collapsed", *job),
    "exact GP": gaussian_process,
    "sparse GP": lambda data, steps: gaussian_process(
        data, steps, SETTINGS["sparse GP, num_inducing"]
    ),
    "dropout": by_dropout,
    "ensemble of 5": lambda *job: chosen("ensemble of 5", *job),
    "mean-field": lambda *job: chosen("mean-field", *job),
}
#: RMSE and negative log-likelihood of table 5 of the paper
PAPER = {"as published": "0.28 / 0.08", "exact GP": "0.65 / 0.83", "dropout": "0.29 / 0.21"}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    data = Data(arguments.data_root)
    rows: list[dict[str, Any]] = []
    shown: dict[str, Prediction] = {}
    for seed in arguments.seeds:
        scale = SETTINGS["scales"][1]
        for method in arguments.methods:

            def steps(count: int, method: str = method) -> Any:
                limit = min(count, arguments.num_steps)
                return trange(limit, desc=method, disable=arguments.quiet, leave=False)

            job = (data, steps, scale) if method == "dropout" else (data, steps)
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                shown[method], choices = METHODS[method](*job)
            scale = choices["scale"] if method == "alpha=0" else scale
            row = {"method": method, "seed": seed, **choices, **_scores(data, shown[method])}
            rows.append(row | {"cpu_seconds": watch.cpu_seconds})
            write_record("vip_solar", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        train_part = (data.years[data.kept] + 1805, data.y[data.kept])
        truth = (data.years + 1805, data.y)
        draw_bands(arguments.figure, train_part, truth, shown, columns=2, limit=4.0)
    return rows


def _scores(data: Data, prediction: Prediction) -> dict[str, float]:
    mean, sd = (part[~data.kept] for part in prediction)
    y = data.y[~data.kept]
    return {
        "rmse": (mean - y).square().mean().sqrt().item(),
        "nll": negative_log_likelihood(y, (mean, sd)),
        "coverage": interval_coverage(y, (mean, sd)),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        keys = ("rmse", "nll", "coverage", "cpu_seconds")
        *cells, seconds = (mean_and_error([row[key] for row in own], ".2f") for key in keys)
        scales = ", ".join(f"{row['scale']:g}" for row in own)
        lines.append([method, len(own), *cells, PAPER.get(method), scales, seconds])
    header = ["method", "seeds", "RMSE", "NLL", "90% coverage", "paper", "years / scale", "CPU s"]
    return format_table(header, lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """To the collapsed objective, for the same seed."""
    return paired(rows, "collapsed")


def _options() -> Any:
    options = parser(
        __doc__ or "", seeds=range(5), methods=METHODS, figure="bands of the last seed"
    )
    options.add_argument("--num-steps", type=positive, default=5000, help="at most, of every fit")
    return options


if __name__ == "__main__":
    main()
