"""The mean of a Gaussian start, against closed forms."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.guides.initialization.centring import centred
from pyro_implicit.guides.initialization.gaussian_bound import objective


@pytest.mark.long
@settings(max_examples=15)
@given(size=st.integers(1, 10), seed=st.integers(0, 1000), away=st.floats(2.0, 20.0))
def test_a_gaussian_is_centred(size: int, seed: int, away: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator).double() + 2 * torch.eye(size).double()
    truth = dist.MultivariateNormal(torch.ones(size).double(), root @ root.mT)
    begin = truth.mean + away * root.sum(1)
    found = centred(truth.log_prob, begin, root)
    assert torch.linalg.solve(root, found - truth.mean).abs().max() < 1e-6


@pytest.mark.long
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), factor=st.floats(0.01, 3.0))
def test_the_bound_does_not_fall(seed: int, factor: float) -> None:
    """Of a density with light tails and a room that ends."""
    generator = torch.Generator().manual_seed(seed)
    begin, matrix = torch.randn(3, generator=generator), torch.randn(3, 3, generator=generator)

    def density(u: Tensor) -> Tensor:
        value = -(matrix @ u).pow(4).sum() - 0.1 * u.abs().sum()
        return torch.where((u < 3).all(), value, torch.nan)

    root = factor * torch.eye(3)
    before = objective(density, begin, root, 32)
    assert not objective(density, centred(density, begin, root), root, 32) < before


def test_without_finite_gradients_it_stays() -> None:
    begin = torch.ones(2)
    found = centred(lambda u: u.sum() * torch.nan, begin, torch.eye(2))
    torch.testing.assert_close(found, begin, rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.automatic_start
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_a_start_for_correlated_columns_has_the_mean_of_the_posterior(kind: str) -> None:
    """A mean-field fit ends several deviations of the posterior beside it."""
    generator = torch.Generator().manual_seed(0)
    size, shared = 20, 0.99
    x = torch.randn(100, size, generator=generator) * (1 - shared) ** 0.5
    x = x + shared**0.5 * torch.randn(100, 1, generator=generator)
    y = x.sum(1) + torch.randn(100, generator=generator)

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(size), 3.0).to_event(1))
        with pyro.plate("rows", 100):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    precision = (x.mT @ x + torch.eye(size) / 9).double()
    covariance = precision.inverse()
    mean, scale = covariance @ (x.mT @ y).double(), covariance.diagonal().sqrt()
    torch.manual_seed(0)
    guide = HyperNetworkGuide(model, init_from=kind).setup()
    preconditioner = guide.samplers[0].preconditioner
    away = (preconditioner.centre.detach().double() - mean) / scale
    assert float(away.abs().max()) < 0.05
