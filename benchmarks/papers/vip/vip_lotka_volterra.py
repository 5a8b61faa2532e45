"""
The Lotka-Volterra model (section 4.5 of the paper on variational implicit processes).

Predators and prey from 50 and 100 (the paper gives no initial state), rates 0.01, 0.5, 1.0, 0.01,
for 30 time units, seen every 0.05 without noise: 500 observations to fit, the last 100 to predict.
Populations are standardised by the first 500; scores are means over both and over the last 100.
--data mean-field: the differential equations; stochastic: an exact simulation (Gillespie), whose
oscillations lose their phase.

network, alpha=0     a 1-10-10-2 network with random weights, one set of 20 frozen functions and of
                     coefficients for both populations, Adam at 0.01 (the paper: 0.001)
network, collapsed   the marginal likelihood of both, 50 new functions at each step, 200 to predict
simulator            the differential equations with log-normal rates as the prior: medians and
                     spreads are trained by the marginal likelihood (50 new functions at each step),
                     from medians that are 1.5, 1.4, 0.7 and 0.7 times the true ones and spreads of
                     0.2; the first quarter of the steps sees 150 observations, the second 300

The simulator takes 0.15 of --num-steps. Seeds are those of the simulation and of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from tqdm.auto import trange

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.vip._lotka_volterra import RATES, START, STEP, MeanField, simulate
from benchmarks.papers.vip._vip_fits import Collapsed, Fit, Weights, negative_log_likelihood, train
from benchmarks.records import write_record
from pyro_implicit.processes import RandomNetwork

NUM_TRAIN, NUM_TEST = 500, 100
SETTINGS: dict[str, Any] = {
    "rates": RATES,
    "start": START,
    "step": STEP,
    "num_functions": {"weights": 20, "collapsed": 50, "prediction of collapsed": 200},
    "noise": 0.3,
    "rate": 0.01,
    "factors": [1.5, 1.4, 0.7, 0.7],
    "spread": 0.2,
    "simulator_part": 0.15,
    "simulator_rate": 0.02,
    "stages": [150, 300, NUM_TRAIN],
}
DATA = ("mean-field", "stochastic")
METHODS = ("network, alpha=0", "network, collapsed", "simulator")
Prediction = tuple[Tensor, Tensor]


def by_network(kind: str, times: Tensor, y: Tensor, num_steps: int, bar: Any) -> Prediction:
    """Times from -1 to 1."""
    layers = [nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 2)]
    x = times / times.max() * 2 - 1
    fit = _make(RandomNetwork(nn.Sequential(*layers)), kind)
    data = (x[:NUM_TRAIN], y[:, :NUM_TRAIN])
    train(fit, data, bar(num_steps), rate=SETTINGS["rate"])
    with torch.no_grad():
        return fit.predict(*data, x[NUM_TRAIN:])


def by_simulator(
    times: Tensor, y: Tensor, scales: tuple[Tensor, Tensor], num_steps: int, bar: Any
) -> tuple[Prediction, MeanField]:
    """In stages, so that the phases of the oscillation are not lost."""
    medians = tuple(rate * f for rate, f in zip(RATES, SETTINGS["factors"], strict=True))
    prior = MeanField(medians, SETTINGS["spread"], *scales)
    fit = _make(prior, "collapsed")
    for seen, part in zip(SETTINGS["stages"], (0.25, 0.25, 0.5), strict=True):
        data = (times[:seen], y[:, :seen])
        train(fit, data, bar(max(1, round(part * num_steps))), rate=SETTINGS["simulator_rate"])
    with torch.no_grad():
        return fit.predict(times[:NUM_TRAIN], y[:, :NUM_TRAIN], times[NUM_TRAIN:]), prior


def _make(prior: nn.Module, kind: str) -> Fit:
    counts = SETTINGS["num_functions"]
    if kind == "collapsed":
        predictive = counts["prediction of collapsed"]
        return Collapsed(prior, SETTINGS["noise"], counts["collapsed"], predictive)
    return Weights(prior, SETTINGS["noise"], counts["weights"], 0.0)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    times = STEP * torch.arange(NUM_TRAIN + NUM_TEST)[:, None]
    rows: list[dict[str, Any]] = []
    shown: dict[str, Prediction] = {}
    for seed in arguments.seeds:
        path = _path(arguments.data, times, seed)
        shift, scale = path[:, :NUM_TRAIN].mean(1), path[:, :NUM_TRAIN].std(1)
        y = (path - shift[:, None]) / scale[:, None]
        for method in arguments.methods:

            def bar(count: int, method: str = method) -> Any:
                return trange(count, desc=method, disable=arguments.quiet, leave=False)

            found: dict[str, Any] = {}
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                if method == "simulator":
                    steps = max(1, round(SETTINGS["simulator_part"] * arguments.num_steps))
                    shown[method], prior = by_simulator(times, y, (shift, scale), steps, bar)
                    found["medians"] = prior.loc.detach().exp().tolist()
                else:
                    kind = method.removeprefix("network, ")
                    shown[method] = by_network(kind, times, y, arguments.num_steps, bar)
            row = {"method": method, "seed": seed, **_scores(y, shown[method])}
            rows.append(row | found | {"cpu_seconds": watch.cpu_seconds})
            write_record("vip_lotka_volterra", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        draw(arguments.figure, times[:, 0], y, shown)
    return rows


def _path(kind: str, times: Tensor, seed: int) -> Tensor:
    """Predators and prey, ``(2, N)``."""
    if kind == "stochastic":
        return torch.tensor(simulate(len(times), seed), dtype=torch.float32)
    with torch.no_grad():
        exact = MeanField(RATES, 1e-9, torch.zeros(2), torch.ones(2))
        return exact(times, 1)[0]


def _scores(y: Tensor, prediction: Prediction) -> dict[str, float]:
    """Over both populations and over each."""
    held = y[:, NUM_TRAIN:]
    squares = (prediction[0] - held).square().mean(1)
    return {
        "rmse": squares.mean().sqrt().item(),
        "nll": negative_log_likelihood(held, prediction),
        "rmse_predators": squares[0].sqrt().item(),
        "rmse_prey": squares[1].sqrt().item(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        keys = ("rmse", "nll", "rmse_predators", "rmse_prey", "cpu_seconds")
        cells = [mean_and_error([row[key] for row in own], ".2f") for key in keys]
        lines.append([method, len(own), *cells])
    header = ["method", "seeds", "RMSE", "NLL", "RMSE, predators", "RMSE, prey", "CPU s"]
    return format_table(header, lines)


def draw(path: Path, times: Tensor, y: Tensor, shown: dict[str, Prediction]) -> None:
    """Both populations at the end, and what each method predicts of the last of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(shown), figsize=(3.5 * len(shown), 5), sharex=True, squeeze=False
    )
    late, new = times > 15, times[NUM_TRAIN:]
    for column, (method, (mean, sd)) in enumerate(shown.items()):
        for row, name in enumerate(("predators", "prey")):
            ax = axes[row, column]
            ax.plot(times[late], y[row, late], color="grey", lw=1)
            ax.plot(new, mean[row])
            low, high = mean[row] - 2 * sd[row], mean[row] + 2 * sd[row]
            ax.fill_between(new, low, high, alpha=0.3)
            ax.set(title=f"{method}: {name}", ylim=(-3, 5))
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def _options() -> Any:
    options = parser(
        __doc__ or "", seeds=range(5), methods=METHODS, figure="bands of the last seed"
    )
    options.add_argument("--num-steps", type=positive, default=2000, help="(default: 2000)")
    options.add_argument("--data", choices=DATA, default=DATA[0], help=f"(default: {DATA[0]})")
    return options


if __name__ == "__main__":
    main()
