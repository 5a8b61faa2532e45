"""
The classification experiment of Kernel Implicit Variational Inference, with its controls: MNIST, a
784-L-L-10 network, one matrix-multiplication generator per layer (appendix D.2 of the paper).

map         Adam on the log-joint
ensemble    five of these, from starts of their own
mean-field  AutoNormal, Trace_ELBO
no KL       the generators trained on the likelihood alone
published   KernelDensityRatioELBO(published=True)
adaptive    KernelDensityRatioELBO, its defaults

All but four of the ensemble start at the same MAP fit of --start-epochs on the same images. Short
by default: 10 000 images and one epoch. Test error of the mean of 10 draws' probabilities, as in
the paper, which has 1.68% (L = 400), 1.56% (800) and 1.73% (1200) with 50 000 images. --validation
scores training images that follow those of the fit, and touches no test image.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.kivi._kivi_mnist import NUM_SAMPLES, OBJECTIVES, KiviGuide, Perceptron
from benchmarks.records import write_record
from benchmarks.shared.image_fits import ImageFits, add_mnist_options, cut_mnist, standardised
from benchmarks.shared.images import classifier
from benchmarks.shared.paired import pairs

METHODS = ("map", "ensemble", "mean-field", *OBJECTIVES)
SETTINGS: dict[str, Any] = {
    "batch_size": 100,
    "lr": 1e-3,
    "guide_lr": 0.02,
    "init_scale": 0.05,
    "scale": 0.01,
    "mean_field_scale": 0.01,
    "num_particles": 2,
    "num_samples": NUM_SAMPLES,
    "num_draws": 10,
    "num_modes": 5,
}


class Bench(ImageFits):
    """The data, and fits on them with one seed."""

    def __init__(self, data: dict[str, Tensor], arguments: Any) -> None:
        x, y = data["x_train"], data["y_train"]
        super().__init__(x, y, SETTINGS["batch_size"], arguments.quiet)
        self.data, self.arguments = data, arguments
        self.start = self._start()

    def _start(self) -> nn.Module:
        return self._mode(Perceptron(self.arguments.width), self.arguments.start_epochs)

    def _mode(self, net: nn.Module, epochs: float) -> nn.Module:
        return self.to_mode(net, epochs, SETTINGS["lr"])

    def fit(self, method: str) -> tuple[Callable[[Tensor], Tensor], float | None]:
        """
        :returns: from images to mean probabilities; and the KL term that the objective claims.
        """
        net = copy.deepcopy(self.start)
        if method in ("map", "ensemble"):
            more = SETTINGS["num_modes"] - 1 if method == "ensemble" else 0
            nets = [self._mode(net, self.arguments.epochs)]
            nets += [self._mode(self._start(), self.arguments.epochs) for _ in range(more)]
            return _mean_of_modes(nets), None
        model, bayesian = classifier(net, len(self.x))
        first = bayesian.init_to_module
        if method == "mean-field":
            scale = SETTINGS["mean_field_scale"]
            guide: Any = AutoNormal(model, init_loc_fn=first, init_scale=scale)
            elbo: Any = Trace_ELBO(SETTINGS["num_particles"])
        else:
            noise = {name: SETTINGS[name] for name in ("init_scale", "scale")}
            hidden = self.arguments.hidden or (500 if self.arguments.width <= 400 else 800)
            guide = KiviGuide(model, hidden=hidden, init_loc_fn=first, **noise)
            elbo = OBJECTIVES[method](SETTINGS["num_particles"])
        lr = SETTINGS["lr"] if method == "mean-field" else self.arguments.guide_lr
        epochs = self.arguments.epochs
        last = self.train_guide(model, guide, elbo, epochs=epochs, lr=lr, name=method)
        return self._mean_probabilities(net, guide), _claimed(elbo, model, guide, last)

    def error(self, probabilities: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Test error and mean negative log-likelihood."""
        y = self.data["y_test"]
        p = torch.cat([probabilities(part) for part in self.data["x_test"].split(2000)])
        nll = -p.clamp(min=1e-12).log()[torch.arange(len(y)), y].mean()
        return {"test_error": float((p.argmax(-1) != y).float().mean()), "nll": float(nll)}

    def _mean_probabilities(self, net: nn.Module, guide: Any) -> Callable[[Tensor], Tensor]:
        with torch.no_grad():
            draws = [
                {name: value.detach() for name, value in guide().items()}
                for _ in range(SETTINGS["num_draws"])
            ]

        @torch.no_grad()
        def mean(x: Tensor) -> Tensor:
            return sum(functional_call(net, w, (x,)).softmax(-1) for w in draws) / len(draws)

        return mean


def _mean_of_modes(nets: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def mean(x: Tensor) -> Tensor:
        return torch.stack([net(x).softmax(-1) for net in nets]).mean(0)

    return mean


@torch.no_grad()
def _claimed(elbo: Any, model: Any, guide: Any, batch: Any) -> float | None:
    if isinstance(elbo, Trace_ELBO) or elbo.kl_weight == 0:
        return None
    terms = elbo.terms(model, guide, *batch)
    return -sum(float(value) for name, value in terms.items() if name != "log_likelihood")


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over seeds."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        errors = mean_and_error([100 * row["test_error"] for row in own], ".2f")
        claimed = [row["claimed_kl"] for row in own if row["claimed_kl"] is not None]
        known = mean_and_error(claimed, ".3g") if claimed else ""
        nll = mean_and_error([row["nll"] for row in own], ".3f")
        seconds = statistics.fmean(row["cpu_seconds"] for row in own)
        lines.append([method, len(own), errors, nll, known, f"{seconds:.1f}"])
    header = ["method", "seeds", "test error, %", "NLL", "claimed KL", "CPU s"]
    return format_table(header, lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """Of each method to no KL with the same seed: the same start and minibatches."""
    lines = []
    for names, found in pairs(rows, "no KL"):
        errors = [100 * (a["test_error"] - b["test_error"]) for a, b in found]
        nll = [a["nll"] - b["nll"] for a, b in found]
        changes = [mean_and_error(errors, "+.2f", ".2f"), mean_and_error(nll, "+.3f", ".3f")]
        lines.append([*names, len(found), *changes])
    return format_table(["method less no KL", "seeds", "test error, %", "NLL"], lines)


def _data(arguments: Any) -> dict[str, Tensor]:
    """Standardised images as rows; --validation has some after the fit's as its test images."""
    count = arguments.num_train
    if arguments.validation:
        arguments.num_train = count + arguments.num_test
    data = cut_mnist(arguments, arguments.download)
    arguments.num_train = count
    for key in ("x", "y") if arguments.validation else ():
        whole = data[f"{key}_train"]
        data[f"{key}_train"], data[f"{key}_test"] = whole[:count], whole[count:]
    for key in ("x_train", "x_test"):
        data[key] = standardised(data[key].flatten(1))
    return data


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--width", type=positive, default=400, metavar="L", help="(default: 400)")
    options.add_argument(
        "--hidden", type=positive, metavar="N", help="of the generators (default: the paper's)"
    )
    options.add_argument("--epochs", type=float, default=1.0, help="(default: 1)")
    options.add_argument("--start-epochs", type=float, default=1.0, help="of MAP (default: 1)")
    options.add_argument("--guide-lr", type=float, default=SETTINGS["guide_lr"])
    options.add_argument("--download", action="store_true", help="get MNIST by torchvision")
    options.add_argument("--validation", action="store_true", help="score other training images")
    add_mnist_options(options, 10_000, 10_000)
    arguments = parse(options, argv)
    data = _data(arguments)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        with fixed_seed(seed):
            bench = Bench(data, arguments)
        for method in arguments.methods:
            with fixed_seed(seed), pyro.validation_enabled(False):
                with stopwatch() as watch:
                    probabilities, claimed = bench.fit(method)
                found = bench.error(probabilities) | {"claimed_kl": claimed}
            time = {"cpu_seconds": watch.cpu_seconds}
            rows.append({"method": method, "seed": seed} | found | time)
            write_record("kivi_mnist", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
