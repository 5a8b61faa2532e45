"""Seconds of a start from the Hessian, by the number of latents."""

from __future__ import annotations

from collections.abc import Iterator

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.common import fixed_seed, stopwatch
from benchmarks.cost._speed_timing import Row, Settings, row
from pyro_implicit import BayesianModule, HyperNetworkGuide

__all__ = ["starts"]

NUM_FEATURES = 8
#: latents -> milliseconds that the start may take
GOALS = {101: 4e3, 1001: 8e3, 2001: 30e3}


def starts(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of each size: the first number of hidden units of a regression network counts once."""
    del rounds  # one each: they take long
    for hidden in settings["hidden_units"]:
        with fixed_seed(seed), stopwatch() as watch:
            guide = _build(hidden, settings["num_rows"])
        method = f"{guide.latent_dim} latents"
        goal = GOALS.get(guide.latent_dim)
        yield row('init_from="hessian"', method, 1e3 * watch.cpu_seconds, goal=goal)


def _build(hidden: int, num_rows: int) -> HyperNetworkGuide:
    """A guide of 10 h + 1 weights, built."""
    x = torch.randn(num_rows, NUM_FEATURES)
    y = torch.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.1 * torch.randn(num_rows)
    layers = [nn.Linear(NUM_FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, 1)]
    net = BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    return HyperNetworkGuide(model, init_from="hessian").setup(x, y)
