"""Running statistics of what differs from draw to draw, however a norm is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_implicit.training.fitting.checks.networks_in_training import NetworksInTraining

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


def told(model: Callable[[Tensor], Any]) -> bool:
    with torch.no_grad(), NetworksInTraining() as networks:
        model(X)
    return any("come after latents" in text for text in networks.warnings(model, (X,), {}))


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, training=self.training)


BY_HAND = ByHand()


@pytest.mark.parametrize(
    "call",
    [
        lambda norm, h: norm(h),
        lambda norm, h: norm(input=h),
        lambda norm, h: norm.forward(h),
        lambda norm, h: BY_HAND(h),
    ],
)
def test_weights_before_a_norm_are_told_however_it_is_called(call: Any) -> None:
    norm = nn.BatchNorm1d(4, affine=False)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
        h = call(norm, x @ w)
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(h[:, 0], 0.5), obs=x[:, 0])

    assert told(model)


def test_statistics_of_each_call_alone_are_not_told() -> None:
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(norm(x @ w)[:, 0], 0.5), obs=x[:, 0])

    assert not told(model)


@pytest.mark.parametrize("where", ["the same plate", "another plate"])
def test_latents_of_rows_are_not_told(where: str) -> None:
    decoder = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def model(x: Tensor) -> None:
        z_of_rows = dist.Normal(torch.zeros(len(x), 2), 1.0)
        with pyro.plate("rows" if where == "the same plate" else "latents", len(x)):
            z = pyro.sample("z", z_of_rows.to_event(1))
        with pyro.plate("rows" if where == "the same plate" else "data", len(x)):
            pyro.sample("x", dist.Normal(decoder(z), 0.5).to_event(1), obs=x)

    assert not told(model)


def test_latents_of_groups_are_told() -> None:
    norm, group = nn.BatchNorm1d(1), torch.arange(20) % 4

    def model(x: Tensor) -> None:
        with pyro.plate("groups", 4):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        h = norm((level[group] * x[:, 0]).unsqueeze(-1)).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(h, 0.5), obs=x[:, 0])

    assert told(model)


def test_weights_of_as_many_units_as_there_are_rows_are_told() -> None:
    norm = nn.BatchNorm1d(20, affine=False)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(20, 3), 1.0).to_event(2))
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(norm(x @ w.mT)[:, 0], 0.5), obs=x[:, 0])

    assert told(model)
