"""Chains in another precision than the model holds numbers in."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import refine
from pyro_implicit.exceptions import ArgumentError

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(-1)


def holds_data() -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", 20):
        pyro.sample("y", dist.Normal(X @ w, 0.1), obs=Y)


class HasLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(self.layer(x) @ w, 0.1), obs=y)


def makes_numbers(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal((x + torch.ones(3)) @ w, 0.1), obs=y)


@pytest.mark.parametrize(("model", "data"), [(holds_data, ()), (HasLayer(), (X, Y))])
def test_numbers_that_a_model_holds_are_named(model: Any, data: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)dtype=torch.float64 is that of .*leave dtype"):
        refine(model, 2, *data, num_steps=40, dtype=torch.float64, progress=False)


@pytest.mark.filterwarnings("ignore")
def test_numbers_that_it_makes_follow() -> None:
    chains = refine(makes_numbers, 2, X, Y, num_steps=40, dtype=torch.float64, progress=False)
    assert chains.unconstrained.dtype == torch.float64


@pytest.mark.filterwarnings("ignore")
def test_without_a_type_of_their_own_all_is_well() -> None:
    chains = refine(HasLayer(), 2, X, Y, num_steps=40, progress=False)
    assert chains.unconstrained.dtype == torch.float32
