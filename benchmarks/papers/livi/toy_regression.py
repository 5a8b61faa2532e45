"""
A curve with a gap: how much wider is the posterior where there are no data?

A well-posed sibling of the toy experiment of LIVI (appendix E.3): y = 0.5 x + 0.8 sin(1.2 pi x) and
noise of scale 0.15 (known), 70 inputs in [-2, -0.7] and [0.7, 2]; a 1-7-10-1 network with ELU and
N(0, 1) priors, 105 weights. Every guide starts at the same MAP fit, whose time is in each fit's.

HMC                  16 chains from modes: the reference
MAP, ensemble of 5   that fit, and it with four from other starts
laplace              laplace-torch's of all weights there, linearised, with prior and noise as known
MC dropout, 0.02     this share of hidden units left out, in steps from there and in predictions
SWAG, 0.001          a Gaussian by the path of stochastic gradients from there, at this rate
autoregressive       the linearised objective with a generator that cannot fold, where it is exact;
                     the other guides have a perceptron of as many noises as weights
..., path            the same with gradients along the path of the draws, the objective's default
500 draws            for each ratio, in the place of 200
adversarial, paper   prior-contrastive as in the paper: 20 draws, one hidden layer, 10 inner steps

"ratio" is that of the standard deviation of the network's output in the gap to that among the data;
a distance, the Wasserstein distance of that output from HMC's at a point, in standard deviations of
HMC's, averaged over points.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
import torch
from torch import Tensor
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
from benchmarks.papers.livi._toy_fits import (
    OBJECTIVES,
    SETTINGS,
    Data,
    chains,
    curve,
    data,
    fit,
    make_model,
    mode,
)
from benchmarks.papers.livi._toy_peers import PEERS, peer
from benchmarks.records import write_record
from benchmarks.shared.bands import draw_bands
from benchmarks.shared.paired import pairs
from benchmarks.shared.uci_peers import has_laplace

REFERENCE = "HMC"
METHODS = (REFERENCE, *PEERS, *OBJECTIVES)
Row = dict[str, Any]
Draws = dict[str, Tensor]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    if "laplace" in arguments.methods and not has_laplace():
        print("no rows of laplace: pip install laplace-torch")
        arguments.methods = [method for method in arguments.methods if method != "laplace"]
    x = torch.linspace(-3, 3, 241)[:, None]
    rows: list[Row] = []
    for seed in arguments.seeds:
        with fixed_seed(seed):
            train_data = data()
        shown: Draws = {}
        for row, f in run(arguments, seed, train_data, x):
            shown[row["method"]] = f
            rows.append(row)
            write_record("toy_regression", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        bands = {name: (f.mean(0), f.std(0)) for name, f in shown.items()}
        draw_bands(arguments.figure, train_data, (x, curve(x)), bands, columns=4, limit=3.0)
    return rows


def run(arguments: Any, seed: int, train_data: Data, x: Tensor) -> Iterator[tuple[Row, Tensor]]:
    """A row of each method, the reference first, and draws of the output at ``x``, ``(S, N)``."""
    model, reference = make_model(), None
    with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as first:
        start = mode(model, train_data)
    for method in sorted(arguments.methods, key=METHODS.index):
        row: Row = {"method": method, "seed": seed}
        with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
            if method == REFERENCE:
                f, r_hat = _chains(model, train_data, x, seed)
                reference, accuracy, spent = f, None, 0.0
                row |= {f"r-hat, {part}": r_hat[at].max().item() for part, at in _parts(x).items()}
            else:
                steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
                common = (method, model, start, train_data, x, steps)
                f, objective = (peer(*common, seed), None) if method in PEERS else fit(*common)
                accuracy = next(iter(getattr(objective, "critic_accuracy", {}).values()), None)
                spent = first.cpu_seconds
        row |= _scores(f, x, reference) | {"critic right": accuracy}
        yield row | {"cpu_seconds": watch.cpu_seconds + spent}, f


def _chains(model: Any, train_data: Data, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that r-hat is high: it is in the rows
        return chains(model, train_data, x, seed)


def _parts(x: Tensor) -> dict[str, Tensor]:
    """Which points are well among the data, and which well between them."""
    size = x[:, 0].abs()
    return {"data": (size > 0.8) & (size < 1.9), "gap": size < 0.5}


def _scores(f: Tensor, x: Tensor, reference: Tensor | None) -> Row:
    """
    Errors, deviations and distances of draws ``(S, N)`` of the output, in both parts; None of a
    method that has diverged.
    """
    error, sd = f.mean(0) - curve(x), f.std(0)
    parts = _parts(x)
    row: Row = {f"rmse, {part}": error[at].square().mean().sqrt() for part, at in parts.items()}
    row |= {f"sd, {part}": sd[at].mean() for part, at in parts.items()}
    row = {key: value.item() for key, value in row.items()}
    row["ratio"] = row["sd, gap"] / row["sd, data"] if row["sd, data"] else None
    if reference is not None:
        far = distances(f, reference)
        row |= {f"distance, {part}": far[at].mean().item() for part, at in parts.items()}
    return row if bool(torch.isfinite(f).all()) else dict.fromkeys(row)


def distances(f: Tensor, reference: Tensor) -> Tensor:
    """
    Of the draws at each point, by the Wasserstein distance.

    :param torch.Tensor f: draws, shape ``(S, N)``.
    :param torch.Tensor reference: others, shape ``(T, N)``.
    :returns: in their standard deviations, shape ``(N,)``.
    """
    levels = (torch.arange(100) + 0.5) / 100
    apart = f.quantile(levels, 0) - reference.quantile(levels, 0)
    return apart.abs().mean(0) / reference.std(0)


SHOWN = {
    "rmse, data": "RMSE, data",
    "rmse, gap": "RMSE, gap",
    "sd, data": "sd, data",
    "sd, gap": "sd, gap",
    "ratio": "ratio",
    "distance, data": "distance, data",
    "distance, gap": "distance, gap",
    "critic right": "critic right",
    "cpu_seconds": "CPU s",
}
FORMS = {"ratio": ".1f", "distance, data": ".2f", "distance, gap": ".2f", "cpu_seconds": ".0f"}


def table(rows: list[Row]) -> str:
    """Means over seeds."""
    lines = []
    for method in sorted({row["method"] for row in rows}, key=METHODS.index):
        own = [row for row in rows if row["method"] == method]
        cells = []
        for key in SHOWN:
            values = [row[key] for row in own if row.get(key) is not None]
            form = FORMS.get(key, ".3f")
            if key == "cpu_seconds":
                values = [sum(values) / len(values)]
            if key == "critic right" and values:
                cells.append(f"{sum(values) / len(values):.0%}")
            else:
                cells.append(mean_and_error(values, form) if values else "")
        lines.append([method, *cells])
    return format_table(["method", *SHOWN.values()], lines)


_COMPARED = ("rmse, data", "rmse, gap", "sd, data", "sd, gap", "distance, data", "distance, gap")


def differences(rows: list[Row]) -> str:
    """The guide that is exact less each other method with the same seed."""
    lines = []
    for (method,), found in pairs(rows, "autoregressive"):
        kept = [(row, mine) for row, mine in found if row["sd, data"] is not None]
        cells = [
            mean_and_error([mine[key] - row[key] for row, mine in kept], FORMS.get(key, ".3f"))
            for key in _COMPARED
        ]
        lines.append([method, *cells])
    lines.sort(key=lambda line: METHODS.index(line[0]))
    return format_table(["autoregressive less", *(SHOWN[key] for key in _COMPARED)], lines)


def r_hat(rows: list[Row]) -> str:
    """The worst of each seed's chains, of what they predict."""
    keys = ("r-hat, data", "r-hat, gap")
    lines = [
        [row["seed"], *(f"{row[key]:.3f}" for key in keys), f"{row['cpu_seconds']:.0f}"]
        for row in rows
        if row["method"] == REFERENCE
    ]
    return format_table(["seed", *keys, "CPU s"], lines)


def _options() -> Any:
    options = parser(__doc__ or "", methods=METHODS, figure="bands of the last seed")
    options.add_argument("--num-steps", type=positive, default=3000, help="(default: 3000)")
    return options


if __name__ == "__main__":
    main()
