"""
LeNet on MNIST: accuracy, calibration, and whether other images are told from digits.

map             Adam on the log-joint
ensemble        five of these, from starts of their own
dropout         left on after training; its rate is chosen by validation
swag            a Gaussian by the moments of an epoch of stochastic gradients from the mode
laplace         laplace-torch's of the last layer, linearised; prior by the marginal likelihood
mean-field      AutoNormal, Trace_ELBO
control         MMNNGuide with likelihood and prior alone: what the generator does without entropy
singular-value  the same guide with SingularValueELBO
lanczos         the same guide with LanczosELBO

All have a standard normal prior and the honest weights of an ELBO. The guides start at a short MAP
fit. Digits are judged as they come and rotated by 15 to 180 degrees; other images are those of
KMNIST, FashionMNIST and notMNIST, told from digits by the entropy of the mean prediction or by the
mutual information between prediction and member (none for a single one): the area under the ROC
curve, the share of other images that pass where 95% of the digits do, and quantiles of the entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import pyro

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.livi._mnist_data import OTHERS, load
from benchmarks.papers.livi._mnist_figure import draw_angles
from benchmarks.records import write_record
from benchmarks.shared.image_fits import add_mnist_options
from benchmarks.shared.image_posteriors import METHODS, SETTINGS, Fits
from benchmarks.shared.image_scores import DOUBTS, all_scores, entropy_quantiles
from benchmarks.shared.judged_images import Images
from benchmarks.shared.paired import pairs
from benchmarks.shared.uci_peers import has_laplace

Row = dict[str, Any]
NAMES = {
    "map": "MAP",
    "ensemble": "ensemble",
    "dropout": "MC dropout",
    "swag": "SWAG",
    "laplace": "Laplace, last layer",
    "mean-field": "mean-field",
    "control": "no entropy",
    "singular-value": "singular value",
    "lanczos": "Lanczos",
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    if "laplace" in arguments.methods and not has_laplace():
        print("no rows of laplace: pip install laplace-torch")
        arguments.methods = [method for method in arguments.methods if method != "laplace"]
    rows: list[Row] = []
    for row in run(arguments, load(arguments)):
        rows.append(row)
        write_record("mnist", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        draw_angles(arguments.figure, rows, NAMES)
    return rows


def run(arguments: argparse.Namespace, images: Images) -> Iterator[Row]:
    """A row for each seed and method."""
    for seed in arguments.seeds:
        fits = Fits(images, seed, arguments.epochs, arguments.quiet)
        for method in arguments.methods:
            with fixed_seed(seed), pyro.validation_enabled(False):
                with stopwatch() as watch:
                    members = fits.fit(method)
                with stopwatch() as judging:
                    found = all_scores(members, images) | entropy_quantiles(members, images)
            spent = watch.cpu_seconds + fits.borrowed
            times = {"cpu_seconds": spent, "scores_cpu_seconds": judging.cpu_seconds}
            yield {"method": method, "seed": seed} | found | times


# ---- tables

_SHOWN = {
    "accuracy": ("accuracy 0", ".4f"),
    "NLL": ("nll 0", ".4f"),
    "ECE": ("ece 0", ".4f"),
    "Brier": ("brier 0", ".4f"),
    "accuracy, rotated": ("accuracy 60", ".3f"),
    "NLL, rotated": ("nll 60", ".2f"),
    "ECE, rotated": ("ece 60", ".3f"),
    "Brier, rotated": ("brier 60", ".3f"),
}


def table(rows: list[Row]) -> str:
    """Digits as they come and rotated by 60 degrees: means over seeds."""
    lines = []
    for method, own in _by_method(rows).items():
        cells = [mean_and_error([row[key] for row in own], form) for key, form in _SHOWN.values()]
        seconds = sum(row["cpu_seconds"] for row in own) / len(own)
        lines.append([NAMES[method], *cells, f"{seconds:.0f}"])
    return format_table(["method", *_SHOWN, "CPU s"], lines)


_OTHER_IMAGES = {
    f"{name}, {doubt}": f"{score} {doubt}"
    for score, name in (("auroc", "AUROC"), ("fpr95", "FPR95"))
    for doubt in DOUBTS
}


def others(rows: list[Row]) -> str:
    """Other images told from digits: means over seeds."""
    lines = []
    for kind in OTHERS:
        for method, own in _by_method(rows).items():
            cells = []
            for key in _OTHER_IMAGES.values():
                values = [row[f"{key} {kind}"] for row in own]
                cells.append("" if None in values else mean_and_error(values, ".3f"))
            lines.append([kind, NAMES[method], *cells])
    return format_table(["images", "method", *_OTHER_IMAGES], lines)


_QUARTILES = {"lower quartile": 25, "median": 50, "upper quartile": 75}


def entropies(rows: list[Row]) -> str:
    """Of the mean prediction on other images, in nats: means over seeds."""
    lines = []
    for kind in OTHERS:
        for method, own in _by_method(rows).items():
            keys = [f"entropy {percent}% {kind}" for percent in _QUARTILES.values()]
            cells = [mean_and_error([row[key] for row in own], ".3f") for key in keys]
            lines.append([kind, NAMES[method], *cells])
    return format_table(["images", "method", *_QUARTILES], lines)


_COMPARED = {
    "NLL": ("nll 0", ".4f"),
    "ECE": ("ece 0", ".4f"),
    "NLL, rotated": ("nll 60", ".2f"),
    "ECE, rotated": ("ece 60", ".3f"),
    **{f"AUROC, {kind}": (f"auroc entropy {kind}", ".3f") for kind in OTHERS},
}


def differences(rows: list[Row]) -> str:
    """Lanczos less each other method with the same seed, mean and standard error over seeds."""
    lines = []
    for (method,), found in pairs(rows, "lanczos"):
        cells = [
            mean_and_error([mine[key] - row[key] for row, mine in found], form)
            for key, form in _COMPARED.values()
        ]
        lines.append([NAMES[method], *cells])
    return format_table(["Lanczos less", *_COMPARED], lines)


def _by_method(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        if own:
            found[method] = own
    return found


def _options() -> argparse.ArgumentParser:
    options = parser(
        __doc__ or "",
        seeds=[0],
        methods=METHODS,
        figure="scores against angles and entropies on other images, means over seeds",
    )
    options.add_argument("--epochs", type=float, default=10.0, help="(default: 10)")
    options.add_argument(
        "--download", action="store_true", help="get MNIST by torchvision if it is not there"
    )
    options.add_argument(
        "--validation", action="store_true", help="judge by the last twelfth of the training images"
    )
    options.add_argument(
        "--num-shifted",
        type=positive,
        default=2000,
        metavar="N",
        help="rotate the first N, and take the first N of each other set (default: 2000)",
    )
    add_mnist_options(options, 60_000, 10_000)
    return options


if __name__ == "__main__":
    main()
