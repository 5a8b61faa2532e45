"""
LeNet on MNIST: accuracy, log-likelihood and calibration, as it comes and rotated by 60 degrees.

map             Adam on the log-joint
mean-field      AutoNormal, Trace_ELBO
control         MMNNGuide with likelihood and prior alone: what the generator does without entropy
singular-value  the same guide with SingularValueELBO
lanczos         the same guide with LanczosELBO

All have a standard normal prior and the honest weights of an ELBO. The guides start at a short MAP
fit. What is gained under rotation is the entropy's; what is gained in distribution is largely the
generator's.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    stopwatch,
)
from benchmarks.networks import LeNet
from benchmarks.records import write_record
from benchmarks.shared.image_fits import ImageFits, add_mnist_options, cut_mnist, standardised
from benchmarks.shared.images import GUIDES, NoEntropy, classifier
from pyro_implicit import LanczosELBO, SingularValueELBO, predict

SETTINGS: dict[str, Any] = {
    "batch_size": 256,
    "lr": 2e-3,
    "guide_lr": 0.06,
    "start_epochs": 1,
    "guide": "B",
    "init_scale": 0.05,
    "scale": 0.01,
    "mean_field_scale": 0.01,
    "num_particles": 2,
    "num_draws": 32,
    "bins": 15,
}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "control": NoEntropy,
    "singular-value": partial(SingularValueELBO, num_iterations=5),
    "lanczos": partial(LanczosELBO, num_steps=5),
}
METHODS = ("map", "mean-field", *OBJECTIVES)
ANGLES = (0, 60)
SCORES = ("accuracy", "nll", "ece")


class Bench(ImageFits):
    """The data, and fits on them with one seed."""

    def __init__(self, data: dict[str, Tensor], seed: int, epochs: float, quiet: bool) -> None:
        x = standardised(data["x_train"])
        super().__init__(x, data["y_train"], SETTINGS["batch_size"], quiet)
        self.tests = {
            angle: standardised(rotate(data["x_test"], angle, InterpolationMode.BILINEAR))
            for angle in ANGLES
        }
        self.y_test = data["y_test"]
        self.seed, self.epochs = seed, epochs
        self._start: nn.Module | None = None

    def fit(self, method: str) -> Callable[[Tensor], Tensor]:
        """
        :returns: from images to mean probabilities.
        """
        if method == "map":
            net = self.to_mode(LeNet(), self.epochs, SETTINGS["lr"])
            return torch.no_grad()(lambda x: net(x).softmax(-1))
        model, net = classifier(self.start(), len(self.x))
        start = net.init_to_module
        if method == "mean-field":
            guide: Any = AutoNormal(
                model, init_loc_fn=start, init_scale=SETTINGS["mean_field_scale"]
            )
            elbo: Any = Trace_ELBO(SETTINGS["num_particles"])
        else:
            noise = {name: SETTINGS[name] for name in ("init_scale", "scale")}
            guide = GUIDES[SETTINGS["guide"]](model, init_loc_fn=start, **noise)
            elbo = OBJECTIVES[method](SETTINGS["num_particles"])
        lr = SETTINGS["lr" if method == "mean-field" else "guide_lr"]
        self.train_guide(model, guide, elbo, epochs=self.epochs, lr=lr, name=method)
        return partial(mean_probabilities, net, guide)

    def start(self) -> nn.Module:
        """A copy of the network at which all guides begin."""
        if self._start is None:
            self._start = self.to_mode(LeNet(), SETTINGS["start_epochs"], SETTINGS["lr"])
        return copy.deepcopy(self._start)

    def scores(self, probabilities: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Accuracy, mean negative log-likelihood and calibration error at each angle."""
        found = {}
        for angle, x in self.tests.items():
            p = torch.cat([probabilities(part) for part in x.split(1024)])
            y = self.y_test
            bins = {"num_classes": 10, "n_bins": SETTINGS["bins"]}
            values = (
                multiclass_accuracy(p, y, num_classes=10, average="micro"),
                -p.clamp(min=1e-12).log()[torch.arange(len(y)), y].mean(),
                multiclass_calibration_error(p, y, **bins),
            )
            found |= {
                f"{name} {angle}": float(value) for name, value in zip(SCORES, values, strict=True)
            }
        return found


def mean_probabilities(net: Any, guide: Any, x: Tensor) -> Tensor:
    """Averaged over draws, the same draws for all images."""

    def model(x: Tensor) -> None:
        pyro.deterministic("p", net(x).softmax(-1), event_dim=1)

    pyro.set_rng_seed(0)
    draws = SETTINGS["num_draws"]
    return predict(model, guide, x, num_samples=draws, sites=["p"], moments=True)["p"][0]


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    data = cut_mnist(arguments, arguments.download)
    settings = SETTINGS | {"epochs": arguments.epochs, "validation": False}
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        bench = Bench(data, seed, arguments.epochs, arguments.quiet)
        for method in arguments.methods:
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                probabilities = bench.fit(method)
            times = {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds}
            with pyro.validation_enabled(False):
                scores = bench.scores(probabilities)
            rows.append({"method": method, "seed": seed} | scores | times)
            write_record("mnist", arguments, settings, rows)
    print(table(rows))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds, with the standard error if there are several."""
    keys = [f"{name} {angle}" for angle in ANGLES for name in SCORES] + ["cpu_seconds"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        cells = [mean_and_error([row[key] for row in own], ".4g", ".2g") for key in keys]
        lines.append([method, *cells])
    return format_table(["method", *keys], lines)


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--epochs", type=float, default=10.0, help="(default: 10)")
    options.add_argument(
        "--download", action="store_true", help="get MNIST by torchvision if it is not there"
    )
    add_mnist_options(options, 60_000, 10_000)
    return options


if __name__ == "__main__":
    main()
