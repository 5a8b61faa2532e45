"""
The Lotka-Volterra model (section 4.5 of the paper on variational implicit processes).

Predators and prey from 50 and 100 (the paper gives no initial state; --starts has one nearer to the
fixed point of 100 and 50, and one further from it), rates 0.01, 0.5, 1.0, 0.01, for 30 time units,
seen every 0.05 without noise: 500 observations to fit, the last 100 to predict. Populations are
standardised by the first 500; scores are means over both and over the last 100.
--data mean-field: the differential equations, the same for all seeds; stochastic: an exact
simulation (Gillespie) for each seed, whose oscillations lose their phase.

network, alpha=0     a 1-10-10-2 network with random weights, one set of 20 frozen functions and of
                     coefficients for both populations, Adam at 0.01 (the paper: 0.001)
network, collapsed   the marginal likelihood of both, 50 new functions at each step, 200 to predict
simulator            the differential equations with log-normal rates as the prior: medians and
                     spreads are trained by the marginal likelihood (50 new functions at each step),
                     from medians that are 1.5, 1.4, 0.7 and 0.7 times the true ones and spreads of
                     0.2; the first quarter of the steps sees 150 observations, the second 300

The simulator takes 0.3 of --num-steps. Seeds are those of the simulation and of the fit.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
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
from benchmarks.papers.vip._lotka_volterra import (
    DEFAULT,
    RATES,
    STARTS,
    STEP,
    MeanField,
    simulate,
)
from benchmarks.papers.vip._paired import paired
from benchmarks.papers.vip._vip_fits import (
    Collapsed,
    Fit,
    Weights,
    interval_coverage,
    negative_log_likelihood,
    train,
)
from benchmarks.records import write_record
from pyro_implicit.processes import RandomNetwork

NUM_TRAIN, NUM_TEST = 500, 100
SETTINGS: dict[str, Any] = {
    "rates": RATES,
    "starts": STARTS,
    "step": STEP,
    "num_functions": {"weights": 20, "collapsed": 50, "prediction of collapsed": 200},
    "noise": 0.3,
    "rate": 0.01,
    "factors": [1.5, 1.4, 0.7, 0.7],
    "spread": 0.2,
    "simulator_part": 0.3,
    "simulator_rate": 0.02,
    "stages": [150, 300, NUM_TRAIN],
}
DATA = ("mean-field", "stochastic")
METHODS = ("network, alpha=0", "network, collapsed", "simulator")
Prediction = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """Standardised populations ``(2, N)``, their means and deviations, and where they start."""

    y: Tensor
    scales: tuple[Tensor, Tensor]
    start: str


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
    times: Tensor, case: Case, num_steps: int, bar: Any
) -> tuple[Prediction, MeanField]:
    """In stages, so that the phases of the oscillation are not lost."""
    medians = tuple(rate * f for rate, f in zip(RATES, SETTINGS["factors"], strict=True))
    y = case.y
    prior = MeanField(medians, SETTINGS["spread"], *case.scales, STARTS[case.start])
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
    shown: dict[str, dict[str, Prediction]] = {}
    paths: dict[str, Tensor] = {}
    for seed, start, data in product(arguments.seeds, arguments.starts, arguments.data):
        case = _case(data, start, times, seed)
        name = _name({"data": data, "start": start})
        paths[name] = case.y
        for method in arguments.methods:
            prediction, row = _fit(arguments, method, seed, times, case)
            shown.setdefault(name, {})[method] = prediction
            rows.append({"data": data, "start": start, "method": method, "seed": seed, **row})
            write_record("vip_lotka_volterra", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        draw(arguments.figure, times[:, 0], paths, shown)
    return rows


def _fit(
    arguments: Namespace, method: str, seed: int, times: Tensor, case: Case
) -> tuple[Prediction, dict[str, Any]]:
    """What a method predicts, and a row: steps, scores, medians of rates, time."""

    def bar(count: int) -> Any:
        return trange(count, desc=method, disable=arguments.quiet, leave=False)

    found: dict[str, Any] = {}
    num_steps = arguments.num_steps
    with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
        if method == "simulator":
            num_steps = max(1, round(SETTINGS["simulator_part"] * num_steps))
            prediction, prior = by_simulator(times, case, num_steps, bar)
            found["medians"] = prior.loc.detach().exp().tolist()
        else:
            prediction = by_network(method.removeprefix("network, "), times, case.y, num_steps, bar)
    row = {"steps": num_steps, **_scores(case.y, prediction), **found}
    return prediction, row | {"cpu_seconds": watch.cpu_seconds}


def _case(kind: str, start: str, times: Tensor, seed: int) -> Case:
    """Populations standardised by what is seen of them."""
    if kind == "stochastic":
        path = torch.tensor(simulate(len(times), seed, STARTS[start]), dtype=torch.float32)
    else:
        with torch.no_grad():
            exact = MeanField(RATES, 1e-9, torch.zeros(2), torch.ones(2), STARTS[start])
            path = exact(times, 1)[0]
    mean, scale = path[:, :NUM_TRAIN].mean(1), path[:, :NUM_TRAIN].std(1)
    return Case((path - mean[:, None]) / scale[:, None], (mean, scale), start)


def _scores(y: Tensor, prediction: Prediction) -> dict[str, float]:
    """Over both populations and over each."""
    held = y[:, NUM_TRAIN:]
    squares = (prediction[0] - held).square().mean(1)
    return {
        "rmse": squares.mean().sqrt().item(),
        "nll": negative_log_likelihood(held, prediction),
        "coverage": interval_coverage(held, prediction),
        "rmse_predators": squares[0].sqrt().item(),
        "rmse_prey": squares[1].sqrt().item(),
    }


def _name(row: dict[str, Any]) -> str:
    """The kind of data, and the start if it is another than the usual one."""
    start = row.get("start", DEFAULT)
    return row["data"] if start == DEFAULT else f"{row['data']}, {start}"


def _named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "data": _name(row)} for row in rows]


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors."""
    rows, lines = _named(rows), []
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        own = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        keys = ("rmse", "nll", "coverage", "rmse_predators", "rmse_prey")
        known = [[row[key] for row in own if key in row] for key in keys]
        cells = [mean_and_error(values, ".2f") if values else None for values in known]
        seconds = statistics.fmean(row["cpu_seconds"] for row in own)
        lines.append([data, method, len(own), own[0]["steps"], *cells, f"{seconds:.0f}"])
    header = ["data", "method", "seeds", "steps", "RMSE", "NLL", "90% coverage"]
    return format_table([*header, "RMSE, predators", "RMSE, prey", "CPU s"], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """To the network with the collapsed objective, for the same seed."""
    return paired(_named(rows), "network, collapsed", group="data")


def of_starts(rows: list[dict[str, Any]]) -> str:
    """To the same fit of what starts in the middle, for the same seed."""
    cases = [{**row, "case": f"{row['data']}, {row['method']}"} for row in rows]
    return paired([{**row, "method": row["start"]} for row in cases], DEFAULT, group="case")


def rates(rows: list[dict[str, Any]]) -> str:
    """Medians of the simulator's rates after training, over the true ones."""
    rows, lines = _named(rows), []
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row["medians"] for row in rows if row["data"] == data and "medians" in row]
        if own:
            pairs = zip(RATES, zip(*own, strict=True), strict=True)
            cells = [mean_and_error([m / rate for m in found], ".4f") for rate, found in pairs]
            lines.append([data, len(own), *cells])
    header = ["data", "seeds", "predators' birth", "predators' death", "prey's birth"]
    return format_table([*header, "prey's death"], lines)


def draw(
    path: Path, times: Tensor, paths: dict[str, Tensor], shown: dict[str, dict[str, Prediction]]
) -> None:
    """
    Both populations at the end, and what each method predicts of the last of them.

    :param path: the PNG file.
    :param torch.Tensor times: shape ``(N,)``.
    :param dict paths: predators and prey by kind of data, shape ``(2, N)``.
    :param dict shown: by kind of data and by method.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = len(next(iter(shown.values())))
    size = (3.5 * columns, 4.5 * len(shown))
    figure, axes = plt.subplots(2 * len(shown), columns, figsize=size, sharex=True, squeeze=False)
    late, new = times > 15, times[NUM_TRAIN:]
    panels = [
        (kind, method, name, paths[kind][row], [part[row] for part in prediction])
        for kind, found in shown.items()
        for row, name in enumerate(("predators", "prey"))
        for method, prediction in found.items()
    ]
    for ax, (kind, method, name, y, (mean, sd)) in zip(axes.flat, panels, strict=True):
        ax.plot(times[late], y[late], ":", color="black", lw=1.2, label="data")
        ax.fill_between(new, mean - 2 * sd, mean + 2 * sd, color="tab:blue", alpha=0.2, lw=0)
        for sign in (-2, 2):
            ax.plot(new, mean + sign * sd, "--", color="tab:blue", lw=0.8)
        ax.plot(new, mean, "-", color="navy", lw=1.5, label="mean, two deviations")
        ax.axvline(float(new[0]), color="grey", lw=0.6)
        ax.set_title(f"{kind}, {method}: {name}", fontsize=8)
        ax.set_ylim(-3, 5)
    axes.flat[0].legend(fontsize=6, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def _options() -> Any:
    options = parser(
        __doc__ or "", seeds=range(5), methods=METHODS, figure="bands of the last seed"
    )
    options.add_argument("--num-steps", type=positive, default=1000, help="(default: 1000)")
    options.add_argument("--starts", nargs="+", choices=STARTS, default=[DEFAULT])
    options.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    return options


if __name__ == "__main__":
    main()
