"""Moments of predictions without the draws."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, predict
from pyro_implicit.handlers.rows import row_coupling


@pytest.fixture(autouse=True)
def however_few_rows(monkeypatch):
    """Batches are as small as they are asked for, though there is nothing to save by that here."""
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    mean = pyro.deterministic("mean", slope * x)
    with pyro.plate("data", 100, subsample_size=len(x)):
        return pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("num_samples", [2, 30])
def test_moments_are_those_of_the_draws(parallel: bool, num_samples: int) -> None:
    x = torch.linspace(-1, 1, 70)
    guide = HyperNetworkGuide(model).setup(x, x)
    options = {"num_samples": num_samples, "sites": ["mean", "y"], "parallel": parallel}
    pyro.set_rng_seed(1)
    draws = predict(model, guide, x, **options)
    pyro.set_rng_seed(1)
    moments = predict(model, guide, x, moments=True, batch_size=32, **options)
    for name, values in draws.items():
        assert moments[name].shape == (2, 70)
        expected = torch.stack([values.mean(0), values.var(0)])
        torch.testing.assert_close(moments[name], expected, rtol=1e-4, atol=1e-6)


def test_one_draw_has_no_variance() -> None:
    x = torch.linspace(-1, 1, 5)
    guide = HyperNetworkGuide(model).setup(x, x)
    mean, variance = predict(model, guide, x, num_samples=1, moments=True)["y"]
    assert mean.isfinite().all() and variance.isnan().all()
