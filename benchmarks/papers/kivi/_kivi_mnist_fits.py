"""One fit of each method of the MNIST experiment, stopped by held-out images, and its scores."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.papers.kivi._kivi_mnist import (
    NUM_SAMPLES,
    OBJECTIVES,
    KiviGuide,
    Perceptron,
    forced_kl,
)
from benchmarks.shared.image_fits import ImageFits, Minibatch
from benchmarks.shared.images import classifier
from pyro_implicit.training import EarlyStopping

__all__ = ["METHODS", "SETTINGS", "Bench"]

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
    "many_samples": 100,
    "num_draws": 10,
    "num_modes": 5,
}
Probabilities = Callable[[Tensor], Tensor]


class Bench(ImageFits):
    """The data, and fits on them with one seed; ``x_held`` and ``y_held`` choose the epoch."""

    def __init__(self, data: dict[str, Tensor], width: int, arguments: Any) -> None:
        x, y = data["x_train"], data["y_train"]
        super().__init__(x, y, SETTINGS["batch_size"], arguments.quiet)
        self.data, self.width, self.arguments = data, width, arguments
        self.start = self._start()

    def _start(self) -> nn.Module:
        return self._mode(Perceptron(self.width), self.arguments.start_epochs)[0]

    def _mode(self, net: nn.Module, epochs: float) -> tuple[nn.Module, int | None]:
        watch = _Watch(self.data, lambda: _mean_of_modes([net]), net)
        self.to_mode(net, epochs, SETTINGS["lr"], watch)
        return net, watch.best()

    def fit(self, method: str) -> tuple[Probabilities, dict[str, Any]]:
        """
        :returns: from images to mean probabilities; and the epoch that was kept, the KL term that
            the objective claims, and that the moments force.
        """
        net = copy.deepcopy(self.start)
        if method in ("map", "ensemble"):
            more = SETTINGS["num_modes"] - 1 if method == "ensemble" else 0
            modes = [self._mode(net, self.arguments.epochs)]
            modes += [self._mode(self._start(), self.arguments.epochs) for _ in range(more)]
            names = ("claimed_kl", "claimed_kl_many", "claimed_last", "error_last", "forced_kl")
            unknown = dict.fromkeys(names)
            epoch = modes[0][1] if method == "map" else None
            return _mean_of_modes([net for net, _ in modes]), {"epoch": epoch} | unknown
        return self._fit_guide(method, net)

    def _fit_guide(self, method: str, net: nn.Module) -> tuple[Probabilities, dict[str, Any]]:
        model, bayesian = classifier(net, len(self.x))
        guide, lr = self._guide(method, model, bayesian.init_to_module)
        elbo = (Trace_ELBO if method == "mean-field" else OBJECTIVES[method])(
            SETTINGS["num_particles"]
        )
        first = (self.x[:1], self.y[:1], torch.arange(1))
        guide(*first)  # its parameters are there from here on
        watch = _Watch(self.data, lambda: _mean_of_draws(net, guide), guide)
        epochs = self.arguments.epochs
        options = {"epochs": epochs, "lr": lr, "name": method, "check": watch}
        last = self.train_guide(model, guide, elbo, **options)
        has_claim = method not in ("mean-field", "no KL")
        at_last = _claimed(elbo, model, guide, last) if has_claim else None
        found: dict[str, Any] = {"claimed_last": at_last}
        found["error_last"] = self.error(_mean_of_draws(net, guide))["test_error"]
        found["epoch"] = watch.best()
        found["claimed_kl"] = _claimed(elbo, model, guide, last) if has_claim else None
        many = None
        if method in ("published", "adaptive"):
            kernels = OBJECTIVES[method](1, num_samples=SETTINGS["many_samples"])
            many = _claimed(kernels, model, guide, last)
        found["claimed_kl_many"] = many
        found["forced_kl"] = forced_kl(guide, SETTINGS["many_samples"])
        return _mean_of_draws(net, guide), found

    def _guide(self, method: str, model: Any, start: Any) -> tuple[Any, float]:
        """The guide, and its learning rate."""
        if method == "mean-field":
            scale = SETTINGS["mean_field_scale"]
            return AutoNormal(model, init_loc_fn=start, init_scale=scale), SETTINGS["lr"]
        noise = {name: SETTINGS[name] for name in ("init_scale", "scale")}
        hidden = self.arguments.hidden or (500 if self.width <= 400 else 800)
        guide = KiviGuide(model, hidden=hidden, init_loc_fn=start, **noise)
        return guide, self.arguments.guide_lr

    def error(self, probabilities: Probabilities) -> dict[str, float]:
        """Test error and mean negative log-likelihood."""
        p = torch.cat([probabilities(part) for part in self.data["x_test"].split(2000)])
        y = self.data["y_test"]
        return {"test_error": float((p.argmax(-1) != y).float().mean()), "nll": _nll(p, y)}


class _Watch:
    """Called before the first step and after each epoch; keeps the state that fits best."""

    def __init__(
        self, data: dict[str, Tensor], make: Callable[[], Probabilities], module: nn.Module
    ) -> None:
        self._x, self._y = data["x_held"], data["y_held"]
        self._make, self._module = make, module
        self._stopping = EarlyStopping(patience=10**6)
        self()

    def __call__(self) -> None:
        if not len(self._x):
            return
        score = _nll(self._make()(self._x), self._y)
        if math.isfinite(score):  # a fit that has diverged keeps what it had before
            self._stopping.step(score, self._module)

    def best(self) -> int | None:
        """Puts the best state back, and tells its epoch; None without held-out images."""
        if not len(self._x):
            return None
        self._stopping.restore(self._module)
        return self._stopping.best_step


def _nll(p: Tensor, y: Tensor) -> float:
    return float(-p.clamp(min=1e-12).log()[torch.arange(len(y)), y].mean())


def _mean_of_draws(net: nn.Module, guide: Any) -> Probabilities:
    with torch.no_grad():
        draws = [
            {name: value.detach() for name, value in guide().items()}
            for _ in range(SETTINGS["num_draws"])
        ]

    @torch.no_grad()
    def mean(x: Tensor) -> Tensor:
        return sum(functional_call(net, w, (x,)).softmax(-1) for w in draws) / len(draws)

    return mean


def _mean_of_modes(nets: list[nn.Module]) -> Probabilities:
    @torch.no_grad()
    def mean(x: Tensor) -> Tensor:
        return torch.stack([net(x).softmax(-1) for net in nets]).mean(0)

    return mean


@torch.no_grad()
def _claimed(elbo: Any, model: Any, guide: Any, batch: Minibatch | None) -> float:
    terms = elbo.terms(model, guide, *batch)
    return -sum(float(value) for name, value in terms.items() if name != "log_likelihood")
