"""
The classification experiment of Kernel Implicit Variational Inference, with its controls: MNIST, a
784-L-L-10 network, one matrix-multiplication generator per layer (appendix D.2 of the paper).

map         Adam on the log-joint
ensemble    five of these, from starts of their own
mean-field  AutoNormal, Trace_ELBO
no KL       the generators trained on the likelihood alone
published   KernelDensityRatioELBO(published=True)
adaptive    KernelDensityRatioELBO, its defaults
logistic critic
            AdversarialELBO(contrast="prior") with a logistic regression, a step of it to each

All but four of the ensemble start at the same MAP fit of --start-epochs on the same images. Of each
fit, MAP too, the epoch is kept whose negative log-likelihood of held-out images is least (the one
before the first step among them). 10 000 images by default, and few epochs. Test error of the mean
of 10 draws' probabilities, as in the paper, which has 1.68% (L = 400), 1.56% (800) and 1.73% (1200)
with 50 000 images, 10 000 to choose. --validation scores training images that follow both, and
touches no test image.

"claimed KL" is what the objective takes the KL term for, with the 10 draws of a step and with 100,
and at the last step (with the test error there) instead of the epoch that was kept; "forced KL"
what the means and variances of the weights alone force, were they independent Gaussians.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pyro
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
from benchmarks.papers.kivi._kivi_mnist_fits import METHODS, SETTINGS, Bench
from benchmarks.records import write_record
from benchmarks.shared.image_fits import add_mnist_options, cut_mnist, standardised
from benchmarks.shared.paired import pairs

#: of a row, its name and form
SCORES = (
    ("test_error", "test error, %", ".2f"),
    ("nll", "NLL", ".3f"),
    ("epoch", "epoch", ".1f"),
    ("claimed_kl", "claimed KL", ".3g"),
    ("claimed_kl_many", "by 100 draws", ".3g"),
    ("claimed_last", "last step", ".3g"),
    ("error_last", "error, %", ".2f"),
    ("forced_kl", "forced KL", ".3g"),
    ("cpu_seconds", "CPU s", ".0f"),
)


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over seeds."""
    lines = []
    for width, method in dict.fromkeys((row["width"], row["method"]) for row in rows):
        own = [row for row in rows if (row["width"], row["method"]) == (width, method)]
        cells = []
        for key, _, form in SCORES:
            known = [row[key] for row in own if row.get(key) is not None]
            known = [100 * value for value in known] if "error" in key else known
            small = ".1g" if form.endswith("g") else form
            cells.append(mean_and_error(known, form, small) if known else "")
        lines.append([width, method, len(own), *cells])
    return format_table(["units", "method", "seeds", *(name for _, name, _ in SCORES)], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """Of each method to no KL with the same seed: the same start and minibatches."""
    lines = []
    for names, found in pairs(rows, "no KL", group="width"):
        errors = [100 * (a["test_error"] - b["test_error"]) for a, b in found]
        nll = [a["nll"] - b["nll"] for a, b in found]
        changes = [mean_and_error(errors, "+.2f", ".2f"), mean_and_error(nll, "+.3f", ".3f")]
        lines.append([*names, len(found), *changes])
    return format_table(["units", "method less no KL", "seeds", "test error, %", "NLL"], lines)


def _data(arguments: Any) -> dict[str, Tensor]:
    """
    Standardised images as rows. Those that choose the epoch follow the fit's; --validation has
    still later ones as its test images.
    """
    fit, held = arguments.num_train, arguments.num_validation
    arguments.num_train += held + (arguments.num_test if arguments.validation else 0)
    data = cut_mnist(arguments, arguments.download)
    arguments.num_train = fit
    for key in ("x", "y"):
        whole = data[f"{key}_train"]
        data[f"{key}_train"], data[f"{key}_held"] = whole[:fit], whole[fit : fit + held]
        if arguments.validation:
            data[f"{key}_test"] = whole[fit + held :]
    for key in ("x_train", "x_held", "x_test"):
        data[key] = standardised(data[key].flatten(1))
    return data


def _options() -> Any:
    options = parser(__doc__ or "", seeds=range(3), methods=METHODS)
    options.add_argument("--width", type=positive, nargs="+", default=[400], metavar="L")
    options.add_argument(
        "--hidden", type=positive, metavar="N", help="of the generators (default: the paper's)"
    )
    options.add_argument("--epochs", type=float, default=3.0, help="at most (default: 3)")
    options.add_argument("--start-epochs", type=float, default=1.0, help="of MAP (default: 1)")
    options.add_argument("--guide-lr", type=float, default=SETTINGS["guide_lr"])
    options.add_argument("--download", action="store_true", help="get MNIST by torchvision")
    options.add_argument("--validation", action="store_true", help="score other training images")
    options.add_argument(
        "--num-validation",
        type=int,
        default=1000,
        metavar="N",
        help="training images after the fit's that choose the epoch (default: 1000; 0: the last)",
    )
    add_mnist_options(options, 10_000, 10_000)
    return options


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    data = _data(arguments)
    settings = SETTINGS | {"guide_lr": arguments.guide_lr}
    rows: list[dict[str, Any]] = []
    for width, seed in product(arguments.width, arguments.seeds):
        with fixed_seed(seed):
            bench = Bench(data, width, arguments)
        for method in arguments.methods:
            with fixed_seed(seed), pyro.validation_enabled(False):
                with stopwatch() as watch:
                    probabilities, found = bench.fit(method)
                found |= bench.error(probabilities)
            row = {"width": width, "method": method, "seed": seed}
            rows.append(row | found | {"cpu_seconds": watch.cpu_seconds})
            write_record("kivi_mnist", arguments, settings, rows)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
