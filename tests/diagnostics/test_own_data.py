"""Calibration tells of models that make the distribution of their data of these data."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit.diagnostics import vsbc

Y = torch.randn(12, generator=torch.Generator().manual_seed(0))
X = Y[:-1].clone()


def _posterior(x: Tensor, y: Tensor) -> Any:
    precision = 1.0 + (x * x).sum()
    return dist.Normal((x * y).sum() / precision, precision**-0.5)


def _of_argument(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("times", len(y) - 1):
        pyro.sample("y", dist.Normal(a * y[:-1], 1.0), obs=y[1:])


def _of_steps(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    for t in range(1, len(y)):
        pyro.sample(f"y_{t}", dist.Normal(a * y[t - 1], 1.0), obs=y[t])


def _step_by_step(y: Tensor) -> None:
    a, last = pyro.sample("a", dist.Normal(0.0, 1.0)), torch.tensor(1.0)
    for t in range(len(y)):
        last = pyro.sample(f"y_{t}", dist.Normal(a * last, 1.0), obs=y[t])


def _lagged(y: Tensor, lagged: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("times", len(lagged)):
        pyro.sample("y", dist.Normal(a * lagged, 1.0), obs=y)


def _with_own_noise(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("times", len(y)):
        pyro.sample("y", dist.Normal(a + torch.randn(len(y)), 1.0), obs=y)


def _ranks(model: Any, *args: Any) -> Any:
    def prior(*_: Any) -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))

    return vsbc(model, lambda data: prior, *args, num_simulations=10, progress=False)


@pytest.mark.parametrize("model", [_of_argument, _of_steps])
def test_an_autoregression_on_its_argument_is_told(model: Any) -> None:
    with pytest.warns(UserWarning, match="'y.* is made of the data themselves"):
        _ranks(model, Y)


@pytest.mark.parametrize(
    ("model", "args"),
    [(_step_by_step, (Y,)), (_lagged, (Y[1:], X)), (_with_own_noise, (Y,))],
    ids=["steps", "lagged", "noise"],
)
def test_other_series_are_not(model: Any, args: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ranks(model, *args)


def test_what_is_told_to_be_written_has_uniform_ranks() -> None:
    def guide(y: Tensor, lagged: Tensor) -> None:
        pyro.sample("a", _posterior(lagged, y))

    found = vsbc(_lagged, lambda data: guide, Y[1:], X, num_simulations=200, progress=False)
    assert found.p_value > 0.001
