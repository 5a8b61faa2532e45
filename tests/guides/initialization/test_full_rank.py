"""The Gaussian with all covariances that has the highest evidence bound, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pyro_implicit import BayesianModule, HyperNetworkGuide
from pyro_implicit.guides.initialization.full_rank import fit_full_rank
from pyro_implicit.guides.initialization.gaussian_bound import objective


@pytest.mark.long
@settings(max_examples=15)
@given(
    size=st.integers(1, 8),
    seed=st.integers(0, 1000),
    spread=st.floats(0.0, 2.0),
    is_diagonal=st.booleans(),
)
def test_of_a_gaussian_it_is_that_gaussian(
    size: int, seed: int, spread: float, is_diagonal: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    root = torch.linalg.qr(root)[0] * torch.logspace(-spread, spread, size).double()
    truth = dist.MultivariateNormal(10 * root.sum(1), root @ root.mT)
    begin = torch.full((size,), 0.1).double()
    factor = begin if is_diagonal else torch.diag(begin)
    mean, found = fit_full_rank(truth.log_prob, torch.zeros(size).double(), factor)
    white = torch.linalg.solve(root, found)
    torch.testing.assert_close(white @ white.mT, torch.eye(size).double(), rtol=0, atol=1e-6)
    assert torch.linalg.solve(root, mean - truth.loc).abs().max() < 1e-6


@pytest.mark.parametrize("shape, rate", [(2.0, 1.0), (9.0, 0.1)])
def test_of_the_logarithm_of_a_gamma_variable_it_is_the_closed_form(
    shape: float, rate: float
) -> None:
    """log p = a u - b exp(u): the variance is 1 / a, and b exp(mean + variance / 2) is a."""

    def density(u: Tensor) -> Tensor:
        return (shape * u - rate * u.exp()).sum()

    mean, root = fit_full_rank(density, torch.zeros(1).double(), torch.ones(1).double())
    assert float(root.square()) == pytest.approx(1 / shape, rel=0.1)
    expected = math.log(shape / rate) - 0.5 / shape
    assert float(mean) == pytest.approx(expected, abs=0.25 * shape**-0.5)


@pytest.mark.long
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), power=st.sampled_from([1.0, 1.5, 4.0]))
def test_the_bound_never_falls(seed: int, power: float) -> None:
    """Of a kink, where second derivatives tell nothing, a light tail and a room that ends."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(3, 3, generator=generator)

    def density(u: Tensor) -> Tensor:
        value = -(matrix @ u).abs().pow(power).sum() - 0.1 * u.square().sum()
        return torch.where((u < 4).all(), value, torch.nan)

    begin = torch.randn(3, generator=generator), torch.full((3,), 0.2)
    before = objective(density, *begin, 64)
    mean, root = fit_full_rank(density, *begin)
    assert mean.dtype == root.dtype == torch.float32
    assert not objective(density, mean, root, 64) < before - 1e-3 * abs(before)


def _absolute(residual: Tensor) -> Tensor:
    return residual.abs().sum()


def _quantile(residual: Tensor) -> Tensor:
    return torch.maximum(0.9 * residual, -0.1 * residual).sum()


def _hinge(residual: Tensor) -> Tensor:
    return (1 - residual).clamp(min=0.0).sum()


@pytest.mark.long
@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    num_rows=st.sampled_from([1, 5, 100]),
    width=st.sampled_from([0.05, 1.0]),
    loss=st.sampled_from([_absolute, _quantile, _hinge]),
)
def test_the_bound_does_not_fall_where_derivatives_see_the_prior_alone(
    seed: int, num_rows: int, width: float, loss: Callable[[Tensor], Tensor]
) -> None:
    """Two Hessians are equal, and that of a Gaussian they are not."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(num_rows, 2, generator=generator), torch.randn(num_rows, generator=generator)

    def density(u: Tensor) -> Tensor:
        return -loss(y - x @ u) - 0.01 * u.square().sum()

    begin = torch.zeros(2), torch.full((2,), width)
    before = objective(density, *begin, 64)
    found = fit_full_rank(density, *begin)
    assert objective(density, *found, 64) > before - 0.1


@pytest.mark.long
@pytest.mark.automatic_start
def test_a_start_for_laplacian_noise_is_near_the_posterior() -> None:
    y = torch.tensor([1.0, 1.3, 2.0, 2.2, 2.6])

    def model() -> None:
        m = pyro.sample("m", dist.Normal(0.0, 2.0))
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.Laplace(m, 1.0), obs=y)

    grid = torch.linspace(-6, 8, 4001).double()
    log_p = dist.Normal(0.0, 2.0).log_prob(grid) - (y - grid[:, None]).abs().sum(-1)
    weight = (log_p - log_p.logsumexp(0)).exp()
    mean = float(weight @ grid)
    deviation = float(weight @ (grid - mean).square()) ** 0.5
    torch.manual_seed(0)
    guide = HyperNetworkGuide(model, init_from="full-rank").setup()
    draws = guide.sample(4000)["m"]
    assert float(draws.mean()) == pytest.approx(mean, abs=0.3 * deviation)
    assert float(draws.std()) == pytest.approx(deviation, rel=0.15)


@pytest.mark.long
@pytest.mark.parametrize("scale", [1.0, 0.01, 0.001])
def test_a_latent_that_is_known_well_changes_nothing_for_others(scale: float) -> None:
    counts = torch.tensor([0.0, 3.0, 1.0, 7.0]).double()
    begin = torch.zeros(5).double(), torch.tensor([0.3, 0.3, 0.3, 0.3, scale]).double()

    def density(u: Tensor) -> Tensor:
        smooth = 2 * (u[1:4] - u[:3]).square().sum()
        known = dist.Normal(u.new_zeros(()), scale).log_prob(u[4])
        return (counts * u[:4] - u[:4].exp()).sum() - smooth - u[0].square() / 8 + known

    found = [objective(density, *fit_full_rank(density, *begin), 1000)]
    found.append(objective(density, *begin, 1000))
    assert found[0] > found[1] + 1.5 and found[0] == pytest.approx(1.83, abs=0.05)


def test_a_start_without_a_finite_bound_is_left() -> None:
    """Some draws of the first Gaussian are outside of the domain."""

    def density(u: Tensor) -> Tensor:
        return torch.where((u > 0).all(), (3 * u.log() - u).sum(), torch.nan)

    loc, scale = torch.full((2,), 2.0).double(), torch.full((2,), 0.9).double()
    assert objective(density, loc, scale, 64) == -math.inf
    mean, root = fit_full_rank(density, loc, scale)
    assert torch.isfinite(mean).all() and torch.isfinite(root).all()


def test_a_density_without_derivatives_leaves_it_as_it_is() -> None:
    loc, scale = torch.ones(2), torch.tensor([0.1, 0.2])
    mean, root = fit_full_rank(lambda u: u.sum() * torch.nan, loc, scale)
    assert torch.equal(mean, loc) and torch.allclose(root, torch.diag(scale))


def _walk(num_times: int) -> Any:
    y = torch.poisson(torch.linspace(0, 2, num_times).exp())

    def model() -> None:
        scale = pyro.sample("scale", dist.HalfNormal(0.2))
        steps = pyro.sample("steps", dist.Normal(0.0, 1.0).expand([num_times]).to_event(1))
        with pyro.plate("time", num_times):
            level = (scale[..., None] * steps).cumsum(-1)
            pyro.sample("y", dist.Poisson(level.exp()), obs=y)

    return model


def _network() -> Any:
    net = BayesianModule(
        nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 1)), dist.Normal(0.0, 1.0)
    )
    return lambda: net(torch.ones(3, 4))


@pytest.mark.long
@pytest.mark.automatic_start
def test_a_walk_of_some_hundred_steps_begins_far_above_the_mean_field() -> None:
    pyro.set_rng_seed(0)
    report: Any = HyperNetworkGuide(_walk(270)).setup().start_report
    scores = {trial.name: trial.score for trial in report.gaussians}
    assert report.taken == "full rank"
    assert scores["full rank"] > scores["mean field"] + 10


@pytest.mark.long
@pytest.mark.automatic_start
@pytest.mark.parametrize("make", [_network, lambda: _walk(1001)])
def test_not_of_networks_nor_of_more_than_a_thousand(make: Any, monkeypatch: Any) -> None:
    from pyro_implicit.guides.initialization import auto

    monkeypatch.setattr(auto, "_MEAN_FIELD_STEPS_LARGE", 10)
    report: Any = HyperNetworkGuide(make()).setup().start_report
    assert "full rank" not in {trial.name for trial in report.gaussians}
