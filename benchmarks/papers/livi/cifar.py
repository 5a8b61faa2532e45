"""
Networks on CIFAR-10: photographs as they come, spoilt, and beside those of CIFAR-100.

map             Adam on the log-joint
ensemble        five of these, from starts of their own
dropout         features left out before each dense layer, in training and after it
swag            a Gaussian by the moments of an epoch of stochastic gradients from the mode
laplace         laplace-torch's of the last layer, linearised; prior by the marginal likelihood
mean-field      AutoNormal, Trace_ELBO
control         MMNNGuide with likelihood and prior alone: what the generator does without entropy
singular-value  the same guide with SingularValueELBO
lanczos         the same guide with LanczosELBO

All have a standard normal prior and the honest weights of an ELBO; the guides start at a short MAP
fit. Images are judged as they come, and blurred, noisy or too bright at levels 1, 3 and 5, made on
the fly; those of CIFAR-100 are told from them by the entropy of the mean prediction or by the
mutual information between prediction and member: the area under the ROC curve, and the share of
the others that pass where 95% of CIFAR-10's do. The images are compressed with a small loss. By
default LeNet for colours and 10 000 images; the paper's form is --network wideresnet-28-10
--num-train 50000 --num-test 10000 --epochs 200, for a GPU. --choose tries the rates of
CANDIDATES on training images that no fit sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyro
from torch import nn

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.networks import WideResNet
from benchmarks.papers.livi._bfloat16 import in_bfloat16
from benchmarks.papers.livi._cifar_data import OTHERS, load
from benchmarks.papers.livi._cifar_figure import draw_levels
from benchmarks.records import write_record
from benchmarks.shared.image_fits import add_mnist_options
from benchmarks.shared.image_posteriors import OBJECTIVES, Fits
from benchmarks.shared.image_posteriors import SETTINGS as OF_MNIST
from benchmarks.shared.image_scores import DOUBTS, PREDICTIONS, all_scores
from benchmarks.shared.judged_images import Images
from benchmarks.shared.paired import pairs
from benchmarks.shared.uci_peers import has_laplace

Row = dict[str, Any]
SETTINGS: dict[str, Any] = {
    **OF_MNIST,
    "batch_size": 128,
    "dropout": 0.05,
    "lr": 4e-3,
    "mean_field_lr": 5e-3,
    "guide_lr": 0.06,
    "guide": "mmnn",
}
#: what was chosen for another network
OF_NETWORK: dict[str, dict[str, Any]] = {
    "wideresnet-10-1": {
        "batch_size": 32,
        "dropout": 0.01,
        "lr": 1e-3,
        "swag_lr": 3e-3,
        "mean_field_lr": 1e-3,
        "guide_lr": 6e-3,
        "num_particles": 1,
    },
}
#: the rate of a method, by its name in the settings; "lr" where there is none
RATES = {
    "dropout": "dropout",
    "swag": "swag_lr",
    "mean-field": "mean_field_lr",
    **dict.fromkeys(OBJECTIVES, "guide_lr"),
}
#: what --choose tries; the other methods have one of these rates
CANDIDATES = {
    "map": (5e-4, 1e-3, 3e-3),
    "dropout": (0.01, 0.02, 0.05, 0.1, 0.2),
    "swag": (1e-3, 3e-3, 1e-2),
    "mean-field": (3e-4, 1e-3, 3e-3, 1e-2),
    "control": (2e-3, 6e-3, 0.02),
}
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


def colour_lenet() -> nn.Sequential:
    """LeNet for ``(N, 3, 32, 32)``, 62 006 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


NETWORKS: dict[str, Callable[[], Any]] = {
    "lenet": colour_lenet,
    "wideresnet-10-1": partial(WideResNet, 10, 1),
    "wideresnet-16-1": partial(WideResNet, 16, 1),
    "wideresnet-28-10": partial(WideResNet, 28, 10),
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    if "laplace" in arguments.methods and not has_laplace():
        print("no rows of laplace: pip install laplace-torch")
        arguments.methods = [method for method in arguments.methods if method != "laplace"]
    rows: list[Row] = []
    arguments.validation |= arguments.choose
    for row in run(arguments, load(arguments)):
        rows.append(row)
        write_record("cifar", arguments, _settings(arguments), rows)
    print(choice(rows) if arguments.choose else table(rows))
    if arguments.figure is not None and not arguments.choose:
        draw_levels(arguments.figure, rows, NAMES)
    return rows


def run(arguments: argparse.Namespace, images: Images) -> Iterator[Row]:
    """A row for each seed and method, or for each rate that is tried."""
    chosen = _settings(arguments)
    common = (arguments.epochs, arguments.quiet, _network(arguments), chosen)
    for seed in arguments.seeds:
        kept = Fits(images, seed, *common)
        for method in arguments.methods:
            key = RATES.get(method, "lr")
            tried = CANDIDATES.get(method, ()) if arguments.choose else ()
            for rate in tried or (chosen[key],):
                fits = Fits(images, seed, *common) if tried and key == "lr" else kept
                fits.settings = chosen | {key: rate}
                yield {"method": method, "seed": seed, "rate": rate} | _row(fits, method, images)


def _row(fits: Fits, method: str, images: Images) -> Row:
    with fixed_seed(fits.seed), pyro.validation_enabled(False):
        with stopwatch() as watch:
            members = fits.fit(method)
        found = all_scores(members, images)
    return found | {"cpu_seconds": watch.cpu_seconds + fits.borrowed}


def _network(arguments: argparse.Namespace) -> Callable[[], nn.Module]:
    make = NETWORKS[arguments.network]
    if not arguments.bfloat16:
        return make
    if arguments.network == "lenet":
        raise SystemExit("error: --bfloat16 is for wide residual networks")
    return lambda: in_bfloat16(make())


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    found = SETTINGS | OF_NETWORK.get(arguments.network, {})
    return found | ({"batch_size": arguments.batch_size} if arguments.batch_size else {})


# ---- tables

_SHOWN = {
    "accuracy": ("accuracy 0", ".3f"),
    "NLL": ("nll 0", ".3f"),
    "ECE": ("ece 0", ".3f"),
    "Brier": ("brier 0", ".3f"),
    "NLL, blur 5": ("nll blur 5", ".2f"),
    "NLL, noise 5": ("nll noise 5", ".2f"),
    "NLL, brightness 5": ("nll brightness 5", ".2f"),
    "ECE, blur 5": ("ece blur 5", ".3f"),
}
_OTHERS = {
    f"{name}, {doubt}": (f"{score} {doubt} {kind}", ".3f")
    for kind in OTHERS
    for score, name in (("auroc", "AUROC"), ("fpr95", "FPR95"))
    for doubt in DOUBTS
}
_COMPARED = {key: _SHOWN[key] for key in ("accuracy", "NLL", "ECE", "NLL, blur 5", "NLL, noise 5")}


def table(rows: list[Row]) -> str:
    """As they come and spoilt: means over seeds."""
    return _means(rows, _SHOWN, seconds=True)


def others(rows: list[Row]) -> str:
    """CIFAR-100 told from CIFAR-10: means over seeds."""
    return _means(rows, _OTHERS)


def choice(rows: list[Row]) -> str:
    """Each rate that was tried: means over seeds."""
    lines = []
    for method, rate in dict.fromkeys((row["method"], row["rate"]) for row in rows):
        own = [row for row in rows if (row["method"], row["rate"]) == (method, rate)]
        cells = [mean_and_error([row[f"{key} 0"] for row in own], ".3f") for key in PREDICTIONS]
        seconds = sum(row["cpu_seconds"] for row in own) / len(own)
        lines.append([NAMES[method], f"{rate:g}", *cells, f"{seconds:.0f}"])
    return format_table(["method", "rate", *PREDICTIONS, "CPU s"], lines)


def differences(rows: list[Row]) -> str:
    """Lanczos less each other method with the same seed, mean and standard error over seeds."""
    changed = [
        {**row, **{key: mine[key] - row[key] for key, _ in _COMPARED.values()}}
        for _, found in pairs(rows, "lanczos")
        for row, mine in found
    ]
    return _means(changed, _COMPARED, "Lanczos less")


def _means(
    rows: list[Row], shown: dict[str, tuple[str, str]], first: str = "method", seconds: bool = False
) -> str:
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        cells = []
        for key, form in shown.values():
            values = [row[key] for row in own]
            cells.append("" if None in values else mean_and_error(values, form))
        if seconds:
            cells.append(f"{sum(row['cpu_seconds'] for row in own) / len(own):.0f}")
        lines.append([NAMES[method], *cells])
    return format_table([first, *shown, *(["CPU s"] if seconds else [])], lines)


def _options() -> argparse.ArgumentParser:
    what = "scores against levels, means over seeds"
    options = parser(__doc__ or "", seeds=[0, 1, 2], methods=tuple(NAMES), figure=what)
    options.add_argument("--network", choices=list(NETWORKS), default="lenet")
    options.add_argument(
        "--bfloat16", action="store_true", help="a wide residual network's blocks in bfloat16"
    )
    options.add_argument(
        "--batch-size", type=positive, metavar="N", help="(default: by the network)"
    )
    options.add_argument("--epochs", type=float, default=10.0, help="(default: 10)")
    options.add_argument(
        "--validation", action="store_true", help="judge by training images that no fit sees"
    )
    options.add_argument(
        "--choose", action="store_true", help="try rates, judged by --validation images"
    )
    options.add_argument(
        "--num-shifted",
        type=positive,
        default=500,
        metavar="N",
        help="spoil the first N, and take N of the other classes (default: 500)",
    )
    add_mnist_options(options, 10_000, 2000)
    return options


if __name__ == "__main__":
    main()
