"""
Are correlations between the weights of different layers recovered?

A 1-3-1 network of tanh units, ten weights, on 100 rows of a curve with known noise. So that weights
mean the same in all draws, the prior tells the units apart: weights into them are log-normal, hence
positive, their biases lie around 2, 0 and -2; those after them are N(0, 1). All guides start at the
same mode with draws of deviation 0.05, and are fitted at two rates, of which the one with the
higher bound is told (the other, if one diverges).

HMC                 16 chains from modes: the reference; its own error is that of one half of the
                    chains against the other
autoregressive      HyperNetworkGuide as it comes, LinearisedELBO: it cannot fold, and is exact
perceptron          the paper's generator for small networks, ten noises, by L' (Eq. 15)
..., singular value the same by L'' (Eq. 18), exact
MMNN                matrix multiplication (MMNNGuide), by L'

Errors are root mean squares of the differences of correlations: between weights of two layers, and
within one. "share" is the slope of a method's correlations across layers on those of HMC: 1 where
they are all there, 0 where none is.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
import torch
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
from benchmarks.papers.livi._correlation_figure import draw_correlations
from benchmarks.papers.livi._correlation_fits import (
    GUIDES,
    SETTINGS,
    chains,
    data,
    fit,
    layers,
    mode,
)
from benchmarks.records import write_record
from benchmarks.shared.paired import pairs

REFERENCE = "HMC"
METHODS = (REFERENCE, *GUIDES)
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    rows: list[Row] = []
    for seed in arguments.seeds:
        for row in run(arguments, seed):
            rows.append(row)
            write_record("layer_correlation", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        shown = {row["method"]: row["correlations"] for row in rows if row["seed"] == seed}
        draw_correlations(arguments.figure, shown, len(SETTINGS["biases"]))
    return rows


def run(arguments: Namespace, seed: int) -> Iterator[Row]:
    """The reference, then a row of each guide."""
    with fixed_seed(seed), pyro.validation_enabled(False):
        x, y = data()
        with stopwatch() as watch:
            draws, r_hat = chains(x, y, seed, arguments.chain_steps or SETTINGS["chain_steps"])
        weights = torch.cat(layers(draws), -1)
        one, other = weights.chunk(2)
        reference = weights.flatten(0, 1)
        yield {
            "method": REFERENCE,
            "seed": seed,
            **_scores(one.flatten(0, 1), other.flatten(0, 1)),
            "r_hat": r_hat,
            "correlations": reference.mT.corrcoef().tolist(),
            "cpu_seconds": watch.cpu_seconds,
        }
        start = mode(x, y, seed)
    for method in (one for one in arguments.methods if one != REFERENCE):
        options = {"num_steps": arguments.num_steps, "seed": seed, "quiet": arguments.quiet}
        with pyro.validation_enabled(False):
            with stopwatch() as watch:
                found, told = fit(method, start, x, y, **options)
            weights = torch.cat(layers(found), -1)
        yield {
            "method": method,
            "seed": seed,
            **_scores(weights, reference),
            **told,
            "correlations": weights.mT.corrcoef().tolist(),
            "cpu_seconds": watch.cpu_seconds,
        }


def _scores(weights: Tensor, reference: Tensor) -> dict[str, float]:
    """
    Of the draws of a method, by those of the reference.

    :param torch.Tensor weights: shape ``(S, m)``.
    :param torch.Tensor reference: shape ``(T, m)``.
    """
    found, true = weights.mT.corrcoef(), reference.mT.corrcoef()
    first = torch.arange(len(true)) < 2 * len(SETTINGS["biases"])
    across = first[:, None] & ~first
    within = (first[:, None] == first) & ~torch.eye(len(true), dtype=torch.bool)
    error = (found - true).square()
    sd = reference.std(0)
    return {
        "across": float(error[across].mean().sqrt()),
        "within": float(error[within].mean().sqrt()),
        "share": float((found * true)[across].sum() / true[across].square().sum()),
        "size": float(true[across].square().mean().sqrt()),
        "mean": float(((weights.mean(0) - reference.mean(0)) / sd).square().mean().sqrt()),
        "sd": float((weights.std(0) / sd).log().mean().exp()),
    }


# ---- tables

_SHOWN = {
    "across layers": ("across", ".3f"),
    "within": ("within", ".3f"),
    "share": ("share", ".2f"),
    "means": ("mean", ".2f"),
    "deviations": ("sd", ".2f"),
}


def table(rows: list[Row]) -> str:
    """Errors of correlations, means and deviations: means over seeds."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        cells = [mean_and_error([row[key] for row in own], form) for key, form in _SHOWN.values()]
        seconds = sum(row["cpu_seconds"] for row in own) / len(own)
        lines.append([method, *cells, f"{seconds:.0f}"])
    return format_table(["method", *_SHOWN, "CPU s"], lines)


def differences(rows: list[Row]) -> str:
    """The default guide less each other method with the same seed."""
    lines = []
    for (method,), found in pairs(rows, "autoregressive"):
        cells = [
            mean_and_error([mine[key] - row[key] for row, mine in found], f"+{form}", form)
            for key, form in _SHOWN.values()
        ]
        lines.append([method, *cells])
    return format_table(["autoregressive less", *_SHOWN], lines)


def references(rows: list[Row]) -> str:
    """How good the chains are, and how large the correlations across layers."""
    lines = [
        [row["seed"], f"{row['r_hat']:.3f}", f"{row['size']:.2f}", f"{row['across']:.3f}"]
        for row in rows
        if row["method"] == REFERENCE
    ]
    return format_table(["seed", "worst r-hat", "size across layers", "of two halves"], lines)


def _options() -> Any:
    options = parser(__doc__ or "", methods=METHODS, figure="correlations of the last seed")
    options.add_argument("--num-steps", type=positive, default=3000, help="(default: 3000)")
    options.add_argument(
        "--chain-steps", type=positive, metavar="N", help="gradients of each chain (default: 40000)"
    )
    return options


if __name__ == "__main__":
    main()
