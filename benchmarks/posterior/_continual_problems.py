"""Tasks that come one after the other: pairs of digits, and a curve seen window by window."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.common import load_npz
from pyro_implicit import BayesianModule

__all__ = ["PROBLEMS", "Data", "Problem", "Task"]

Data = tuple[Tensor, ...]
Settings = dict[str, Any]


@dataclass
class Task:
    """Inputs and outcomes, to learn from and to be judged by."""

    train: Data
    test: Data


@dataclass
class Problem:
    """
    Tasks, and what is learned of them.

    :param list tasks: in their order.
    :param network: a function of the inputs, with one output, before any task.
    :param likelihood: of an outcome, given the network's output.
    :param judge: scores of outcomes, given the outputs of draws, shape ``(S, N)``.
    """

    tasks: list[Task]
    network: nn.Module
    likelihood: Callable[[Tensor], Any]
    judge: Callable[[Tensor, Tensor], dict[str, float]]

    def empty(self) -> Data:
        """One row of nothing, to run a guide with."""
        return tuple(torch.zeros_like(part[:1]) for part in self.tasks[0].train)

    def model(self, net: BayesianModule) -> Callable[..., None]:
        """The likelihood of all rows, given the network."""

        def model(x: Tensor, y: Tensor) -> None:
            outputs = net(x).squeeze(-1)
            with pyro.plate("data", len(x)):
                pyro.sample("y", self.likelihood(outputs), obs=y)

        return model


# ---- digits


def _digits(arguments: Namespace, seed: int, settings: Settings) -> Problem:
    del arguments
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    return _pairs(images / 16.0, digits, seed, settings)


def _mnist(arguments: Namespace, seed: int, settings: Settings) -> Problem:
    arrays = load_npz(arguments.data_root, "mnist.npz")
    images = np.concatenate([arrays["x_train"], arrays["x_test"]]) / 255.0
    digits = np.concatenate([arrays["y_train"], arrays["y_test"]])
    return _pairs(images, digits, seed, settings)


def _pairs(images: Any, digits: Any, seed: int, settings: Settings) -> Problem:
    """Five pairs of digits; a third of the rows is for testing, chosen by the seed."""
    x = torch.from_numpy(np.asarray(images)).float().reshape(len(images), -1)
    y = torch.from_numpy(np.asarray(digits)).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    tasks = []
    for first in range(0, 10, 2):
        mine = order[(y[order] == first) | (y[order] == first + 1)]
        part = x[mine] - 0.5, (y[mine] - first).float()
        cut = len(mine) // 3
        tasks.append(Task((part[0][cut:], part[1][cut:]), (part[0][:cut], part[1][:cut])))
    network = _network(x.shape[1], settings["hidden"])
    return Problem(tasks, network, lambda logits: dist.Bernoulli(logits=logits), _judged_classes)


def _judged_classes(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy and mean log density of the averaged predictions."""
    mean = logits.sigmoid().mean(0)
    p = torch.where(y == 1, mean, 1 - mean).clamp(min=1e-6)
    right = ((mean > 0.5).float() == y).float().mean()
    return {"accuracies": float(right), "log_densities": float(p.log().mean())}


# ---- a curve


def _drift(arguments: Namespace, seed: int, settings: Settings) -> Problem:
    """A smooth curve, drawn by the seed, whose inputs move on from task to task."""
    del arguments
    generator = torch.Generator().manual_seed(seed)
    curve = _curve(settings["length"], generator)
    count, noise = settings["windows"], settings["noise"]

    def rows(window: int, size: int) -> Data:
        x = window - count / 2 + torch.rand(size, generator=generator)
        return x[:, None], curve(x) + noise * torch.randn(size, generator=generator)

    tasks = [Task(rows(k, settings["rows"]), rows(k, settings["test_rows"])) for k in range(count)]

    def likelihood(mean: Tensor) -> Any:
        return dist.Normal(mean, noise)

    def judge(means: Tensor, y: Tensor) -> dict[str, float]:
        densities = likelihood(means).log_prob(y).logsumexp(0) - math.log(len(means))
        rmse = (means.mean(0) - y).square().mean().sqrt()
        return {"rmses": float(rmse), "log_densities": float(densities.mean())}

    return Problem(tasks, _network(1, settings["hidden"]), likelihood, judge)


def _curve(length: float, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """About a draw of a Gaussian process of deviation 1, by 200 waves (Rahimi and Recht 2007)."""
    waves = torch.randn(200, generator=generator) / length
    phases = 2 * math.pi * torch.rand(200, generator=generator)
    return lambda x: (x[:, None] * waves + phases).cos().mean(-1) * math.sqrt(2 * len(waves))


def _network(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))


PROBLEMS: dict[str, Callable[[Namespace, int, Settings], Problem]] = {
    "digits": _digits,
    "mnist": _mnist,
    "drift": _drift,
}
