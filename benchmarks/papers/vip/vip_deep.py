"""
Two implicit processes on each other beside one, on UCI regression: a row beyond the paper.

Canonical splits; test RMSE and negative log-likelihood in the target's units and coverage of 90%
intervals, mean and standard error over splits. Every layer is a D-10-10-K network with random
weights, 20 frozen functions and a Gaussian posterior of the coefficients of each output, trained by
the alpha-energy (0.5) of minibatches of 1000.

one layer                  K = 1
one layer, 40 functions    K = 1, the same with twice the functions: about the time of two layers
two layers                 at most 10 outputs of the first, drawn once for each row and step, added
                           to the inputs (or to their first principal axes); 50 draws predict
sparse GP                  Pyro's variational one, 100 inducing inputs, 300 steps, on at most 2000
                           rows, drawn at random

The number of steps (early stopping, at most --num-steps) and a factor on the noise are chosen for
each split on 15% of its training part; the fit is then made anew on all of it, and scored once on
the test part. The Gaussian process chooses nothing.
"""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import pyro
import torch
from torch import nn
from tqdm.auto import tqdm, trange

from benchmarks.common import fixed_seed, format_table, parse, parser, positive, stopwatch
from benchmarks.papers.vip._deep import (
    Layer,
    Layered,
    coverage_of_mixture,
    mixture_nll,
    principal_axes,
)
from benchmarks.papers.vip._paired import mean_cell, paired
from benchmarks.papers.vip._vip_fits import train
from benchmarks.papers.vip._vip_uci import run_gaussian_process
from benchmarks.records import write_record
from benchmarks.shared.uci import Split, load_split

SETTINGS: dict[str, Any] = {
    "hidden units": [10, 10],
    "num_functions": 20,
    "more functions": 40,
    "outputs": 10,
    "alpha": 0.5,
    "noise": 0.3,
    "spread": {"inner": 0.1, "last": 1.0},
    "rate": 0.01,
    "batch_size": 1000,
    "every": 50,
    "patience": 4,
    "draws": {"validation": 10, "test": 50},
    "noise_factors": [0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0],
    "sparse GP, rows": 2000,
}
METHODS = ("one layer", "one layer, 40 functions", "two layers", "sparse GP")
BASE = "one layer"


def make(method: str, split: Split) -> Layered:
    """The layers that a method names."""
    x, spread = split.x, SETTINGS["spread"]
    count = SETTINGS["more functions" if method.endswith("functions") else "num_functions"]
    width = x.shape[1]
    layers, maps = [], []
    if method == "two layers":
        outputs = min(width, SETTINGS["outputs"])
        layers.append(Layer(_network(width, outputs), outputs, count, 1, spread["inner"]))
        maps.append(principal_axes(x, outputs))
        width = outputs
    layers.append(Layer(_network(width, 1), 1, count, 0, spread["last"]))
    return Layered(layers, maps, SETTINGS["noise"], SETTINGS["alpha"])


def _network(num_inputs: int, num_outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    widths = SETTINGS["hidden units"]
    for before, after in zip([num_inputs, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


def choose(method: str, held: Split, seed: int, steps: Any) -> dict[str, Any]:
    """Number of steps and factor of the noise, by the likelihood of held-out rows."""
    with fixed_seed(seed):
        fit = make(method, held)

        def nll(factor: float = 1.0) -> float:
            mixture = fit.mixture(held.x_held, SETTINGS["draws"]["validation"], factor)
            return mixture_nll(held.y_held, mixture)

        count = train(
            fit,
            held.data,
            steps,
            rate=SETTINGS["rate"],
            batch_size=SETTINGS["batch_size"],
            score=nll,
            every=min(SETTINGS["every"], len(steps)),
            patience=SETTINGS["patience"],
        )
        with torch.no_grad():
            best, factor = min((nll(factor), factor) for factor in SETTINGS["noise_factors"])
    found = {"steps": count, "noise_factor": factor}
    return found | {"validation_nll": best + math.log(held.y_scale)}


def run_layers(method: str, held: Split, whole: Split, arguments: Namespace, seed: int) -> Any:
    """Chosen on held-out rows, fitted to all, scored on test rows in the target's units."""

    def bar(count: int) -> Any:
        return trange(count, desc=method, disable=arguments.quiet, leave=False)

    found = choose(method, held, seed, bar(arguments.num_steps))
    with fixed_seed(seed):
        fit = make(method, whole)
        options = {"rate": SETTINGS["rate"], "batch_size": SETTINGS["batch_size"]}
        train(fit, whole.data, bar(found["steps"]), **options)
        with torch.no_grad():
            draws, factor = SETTINGS["draws"]["test"], found["noise_factor"]
            mixture = fit.mixture(whole.x_held, draws, factor)
    y = whole.y_held.double()
    rmse = (mixture[0].mean(0) - y).square().mean().sqrt().item()
    return found | {
        "noise": fit.noise.item(),
        "rmse": rmse * whole.y_scale,
        "nll": mixture_nll(y, mixture) + math.log(whole.y_scale),
        "coverage": coverage_of_mixture(y, mixture),
    }


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns one row for each fit."""
    arguments = parse(_options(), argv)
    jobs = [
        (index, name, seed)
        for index in arguments.splits
        for name in arguments.sets
        for seed in arguments.seeds
    ]
    rows: list[dict[str, Any]] = []
    with pyro.validation_enabled(False):
        for index, name, seed in tqdm(jobs, disable=arguments.quiet):
            held = load_split(arguments.data_root, name, index, validation=True)
            whole = load_split(arguments.data_root, name, index)
            for method in arguments.methods:
                with stopwatch() as watch:
                    if method == "sparse GP":
                        found = _sparse(arguments, name, index, seed)
                    else:
                        found = run_layers(method, held, whole, arguments, seed)
                row = {"set": name, "method": method, "split": index, "seed": seed, **found}
                rows.append(row | {"cpu_seconds": watch.cpu_seconds})
                write_record("vip_deep", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def _sparse(arguments: Namespace, name: str, index: int, seed: int) -> dict[str, Any]:
    rows = SETTINGS["sparse GP, rows"]
    part = load_split(arguments.data_root, name, index, max_rows=rows)
    return run_gaussian_process("sparse GP", part, seed=seed, quiet=arguments.quiet)


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over splits."""
    lines = []
    for name, method in sorted({(row["set"], METHODS.index(row["method"])) for row in rows}):
        own = [row for row in rows if (row["set"], row["method"]) == (name, METHODS[method])]
        scores = [mean_cell([row[key] for row in own]) for key in ("rmse", "nll", "coverage")]
        means = [f"{statistics.fmean(row[key] for row in own):.0f}" for key in _COUNTS]
        lines.append([name, METHODS[method], len(own), *scores, *means])
    header = ["set", "method", "splits", "RMSE", "NLL", "90% coverage", "steps", "CPU s"]
    return format_table(header, lines)


_COUNTS = ("steps", "cpu_seconds")


def differences(rows: list[dict[str, Any]]) -> str:
    """To one layer, on the same split and seed."""
    ordered = sorted(rows, key=lambda row: (row["set"], METHODS.index(row["method"])))
    return paired(ordered, BASE, group="set", units=("split", "seed"))


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    sets = ["boston", "concrete", "power", "protein"]
    options.add_argument("--sets", nargs="+", default=sets, metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(3)), metavar="K")
    options.add_argument("--num-steps", type=positive, default=500, help="at most (default: 500)")
    return options


if __name__ == "__main__":
    main()
