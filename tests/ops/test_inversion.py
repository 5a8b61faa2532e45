"""Densities by importance sampling and by preimages, against closed forms and quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Chi2, MultivariateNormal, Normal

from pyro_implicit.ops.inversion import (
    Map,
    density_by_preimages,
    density_by_sampling,
    spread_starts,
)


def by_autograd(function, noise_dim: int) -> Map:
    jacobian = torch.func.vmap(torch.func.jacrev(lambda z: function(z[None])[0]))
    return Map(function, jacobian, noise_dim)


def linear(d: int, m: int) -> tuple[Map, Tensor]:
    matrix = torch.randn(m, d).double()
    return by_autograd(lambda z: z @ matrix.T, d), matrix


def square(z: Tensor) -> Tensor:
    """Folds each coordinate onto the positive axis."""
    return z.square()


@pytest.mark.long
@pytest.mark.parametrize(("d", "m"), [(1, 1), (2, 3), (3, 2)])
def test_sampling_agrees_with_a_gaussian(d: int, m: int) -> None:
    generator, matrix = linear(d, m)
    noise = torch.randn(50, d).double()
    points = generator.value(noise) + 0.3 * torch.randn(50, m).double()
    found = density_by_sampling(points, generator, 0.3, 3000, 2, noise)
    covariance = matrix @ matrix.T + 0.09 * torch.eye(m).double()
    exact = MultivariateNormal(torch.zeros(m).double(), covariance).log_prob(points)
    assert ((found.value - exact).abs() < 5 * found.standard_error).all()
    assert found.standard_error.mean() < 0.01
    torch.testing.assert_close(found.upper, exact, atol=0.05, rtol=0)


def test_sampling_with_a_scale_for_each_output() -> None:
    generator, matrix = linear(2, 2)
    scale = torch.tensor([0.2, 0.5]).double()
    points = torch.randn(20, 2).double()
    found = density_by_sampling(points, generator, scale, 4000, 4)
    covariance = matrix @ matrix.T + scale.square().diag()
    exact = MultivariateNormal(torch.zeros(2).double(), covariance).log_prob(points)
    torch.testing.assert_close(found.value, exact, atol=0.05, rtol=0)
    assert torch.equal(found.upper, found.value)


def test_sampling_finds_both_sides_of_a_fold() -> None:
    generator = by_autograd(square, 1)
    points = torch.tensor([[0.1], [1.0], [3.0]]).double()
    found = density_by_sampling(points, generator, 0.1, 4000, 8)
    grid = torch.linspace(-8, 8, 400_001).double()
    joint = Normal(grid.square(), 0.1).log_prob(points) + Normal(0.0, 1.0).log_prob(grid)
    exact = joint.logsumexp(-1) + math.log(16 / 400_000)
    torch.testing.assert_close(found.value, exact, atol=0.05, rtol=0)


def test_preimages_of_a_fold_add_up() -> None:
    generator = by_autograd(square, 2)
    noise = torch.randn(100, 2).double()
    points = square(noise)
    found = density_by_preimages(points, generator, 16, noise)
    exact = Chi2(torch.tensor(1.0).double()).log_prob(points).sum(-1)
    torch.testing.assert_close(found.value, exact)  # four noises lead to every point
    torch.testing.assert_close(found.upper, exact)
    assert not found.standard_error.any()


def test_what_one_start_misses_shows_in_the_upper_estimate() -> None:
    generator = by_autograd(square, 1)
    noise = torch.randn(200, 1).double()
    points = square(noise)
    exact = Chi2(torch.tensor(1.0).double()).log_prob(points)[:, 0]
    found = density_by_preimages(points, generator, 1, noise)
    torch.testing.assert_close(found.value, exact - math.log(2))
    missed = found.upper > found.value
    assert 0.35 < missed.double().mean() < 0.65  # the noise was on the other side
    torch.testing.assert_close(found.upper[missed], exact[missed])
    assert (found.upper.mean() - exact.mean()).abs() < math.log(2)


@pytest.mark.long
def test_the_two_sides_hold_in_expectation() -> None:
    """With very few inner draws, and a fold."""
    generator = by_autograd(square, 1)
    noise = torch.randn(4000, 1).double()
    points = square(noise) + 0.5 * torch.randn_like(noise)
    found = density_by_sampling(points, generator, 0.5, 3, 2, noise)
    grid = torch.linspace(-7, 7, 1001).double()
    joint = Normal(grid.square(), 0.5).log_prob(points) + Normal(0.0, 1.0).log_prob(grid)
    exact = joint.logsumexp(-1) + math.log(14 / 1000)
    error = (found.value - exact).std() / len(points) ** 0.5
    assert (found.value - exact).mean() < 3 * error
    assert (found.upper - exact).mean() > -3 * error


def test_no_noise_leads_outside() -> None:
    generator = by_autograd(square, 1)
    found = density_by_preimages(torch.tensor([[-1.0]]).double(), generator, 8)
    assert found.value.item() == -math.inf


def test_starts_are_on_both_sides_of_a_fold() -> None:
    points = torch.rand(30, 1).double() + 0.5
    starts = spread_starts(points, by_autograd(square, 1), 2)
    assert starts.shape == (30, 2, 1)
    assert (starts[:, 0, 0] * starts[:, 1, 0] < 0).all()
