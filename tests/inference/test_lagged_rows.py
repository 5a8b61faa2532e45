"""Sites that have rows, but fewer than the arguments: values that follow others in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit import evaluate, log_predictive_density, predict

NOISE = 0.1


def _ahead(lag: int) -> Callable[[Tensor], None]:
    """Each value near the one ``lag`` steps before it, times a coefficient that the guide knows."""

    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("time", len(y) - lag):
            mean = pyro.deterministic("mean", w * y[:-lag])
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y[lag:])

    return model


def _guide(*_: Any) -> None:
    pyro.sample("w", dist.Delta(torch.tensor(0.5)))


@pytest.mark.long
@settings(max_examples=25)
@given(
    rows=st.integers(8, 150),
    lag=st.integers(1, 5),
    parallel=st.booleans(),
    batch_size=st.sampled_from([None, 1, 7, 32, 64]),
)
def test_no_row_is_lost_nor_moved(
    rows: int, lag: int, parallel: bool, batch_size: int | None
) -> None:
    y = torch.linspace(0.0, 100.0, rows)
    options: dict[str, Any] = {"parallel": parallel, "batch_size": batch_size}
    found = predict(_ahead(lag), _guide, y, num_samples=4, sites=["mean", "y"], seed=0, **options)
    assert found["y"].shape == (4, rows - lag)
    torch.testing.assert_close(found["mean"], (0.5 * y[:-lag]).expand(4, -1))
    assert (found["y"] - 0.5 * y[:-lag]).abs().max() < 6 * NOISE


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("rows", [33, 70])
def test_windows_are_all_there(width: int, rows: int) -> None:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        windows = x.unfold(0, width, 1).sum(-1)
        with pyro.plate("windows", len(windows)):
            pyro.sample("y", dist.Normal(w * windows, 1e-4))

    x = torch.arange(float(rows))
    found = predict(model, _guide, x, num_samples=2, seed=0)["y"]
    expected = 0.5 * x.unfold(0, width, 1).sum(-1)
    torch.testing.assert_close(found, expected.expand(2, -1), rtol=0, atol=1e-2)


@pytest.mark.parametrize("rows", [20, 33, 34, 70])
@pytest.mark.parametrize("lag", [1, 2])
def test_scores_are_those_of_each_value(rows: int, lag: int) -> None:
    pyro.set_rng_seed(0)
    y = torch.randn(rows)
    expected = dist.Normal(0.5 * y[:-lag], NOISE).log_prob(y[lag:])
    report = evaluate(_ahead(lag), _guide, y, num_samples=2, seed=0)
    torch.testing.assert_close(report.rows["log_density"].float(), expected, rtol=1e-5, atol=1e-4)
    density = log_predictive_density(_ahead(lag), _guide, y, num_samples=2)
    torch.testing.assert_close(density.float(), expected, rtol=1e-5, atol=1e-4)
