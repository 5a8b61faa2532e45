"""Densities given the noise, and the proposal for the noise given a draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.semi_implicit import (
    Proposal,
    gauss_newton_proposal,
    gaussian_log_density,
    log_densities,
)

SCALES: dict[str, Any] = {
    "number": 0.3,
    "scalar": torch.tensor(0.3).double(),
    "diagonal": torch.tensor([0.3, 0.1, 2.0]).double(),
}


@pytest.mark.parametrize("kind", SCALES)
def test_log_densities_are_torchs(kind: str) -> None:
    scale = SCALES[kind]
    values, means = torch.randn(5, 3).double(), torch.randn(4, 3).double()
    spread = torch.as_tensor(scale).double().expand(3)
    normal = torch.distributions.Normal(means, spread)
    expected = normal.log_prob(values[:, None]).sum(-1)
    torch.testing.assert_close(log_densities(values, means, scale), expected)
    torch.testing.assert_close(gaussian_log_density(values[:, None], means, scale), expected)


def random_proposal(n: int = 3, d: int = 2, share: float = 0.1) -> Proposal:
    root = torch.randn(n, d, d).double()
    precision = root @ root.mT + 2 * torch.eye(d).double()
    factor = torch.linalg.cholesky(precision).mT
    return Proposal(torch.randn(n, d).double(), factor, share)


def test_proposal_density_is_the_mixture_of_torchs_gaussians() -> None:
    proposal = random_proposal()
    z = torch.randn(7, 3, 2).double()
    precision = proposal.factor.mT @ proposal.factor
    local = torch.distributions.MultivariateNormal(proposal.mean, precision_matrix=precision)
    prior = torch.distributions.Normal(0.0, 1.0)
    expected = 0.9 * local.log_prob(z).exp() + 0.1 * prior.log_prob(z).sum(-1).exp()
    torch.testing.assert_close(proposal.log_density(z), expected.log())


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_proposal_draws_match_its_density(share: float) -> None:
    proposal = random_proposal(share=share)
    count = 100_000
    z = proposal.sample(count)
    assert z.shape == (count, 3, 2)
    expected = (1 - share) * proposal.mean
    spread = z.std(0) / count**0.5
    assert ((z.mean(0) - expected).abs() < 5 * spread).all()
    # the integral of another density, by importance sampling from this one
    other = torch.distributions.Normal(0.2, 0.8)
    weight = (other.log_prob(z).sum(-1) - proposal.log_density(z)).exp()
    error = weight.std(0) / count**0.5
    assert error.max() < 0.01
    assert ((weight.mean(0) - 1).abs() < 5 * error).all()


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("d", [1, 3, 5])
def test_of_a_linear_generator_it_is_the_exact_posterior(kind: str, d: int) -> None:
    scale, m = SCALES[kind], 3
    matrix, offset = torch.randn(m, d).double(), torch.randn(m).double()
    value = torch.randn(6, m).double() * 3

    def generator(z: Tensor) -> Tensor:
        return z @ matrix.mT + offset

    def jacobian(z: Tensor) -> Tensor:
        return matrix.expand(len(z), m, d)

    found = gauss_newton_proposal(value, generator, jacobian, d, scale)
    noise = torch.as_tensor(scale).double().expand(m) ** 2
    # by conditioning the joint Gaussian of z and w, the other way round
    gain = matrix.mT @ torch.linalg.inv(matrix @ matrix.mT + noise.diag())
    mean = (value - offset) @ gain.mT
    covariance = torch.eye(d).double() - gain @ matrix
    torch.testing.assert_close(found.mean, mean, rtol=1e-5, atol=1e-6)
    precision = found.factor.mT @ found.factor
    torch.testing.assert_close(torch.linalg.inv(precision), covariance.expand(6, d, d))
    assert found.factor.triu().equal(found.factor)


def test_of_a_nonlinear_generator_it_is_a_mode() -> None:
    value = torch.tensor([[0.3], [2.0], [-1.0], [30.0]]).double()

    def generator(z: Tensor) -> Tensor:
        return z.sinh()

    found = gauss_newton_proposal(value, generator, lambda z: z.cosh()[..., None], 1, 0.1)
    grid = torch.linspace(-6, 6, 240_001).double()
    energy = 0.5 * ((value - grid.sinh()) / 0.1).square() + 0.5 * grid.square()
    best = grid[energy.argmin(-1)]
    torch.testing.assert_close(found.mean[:, 0], best, rtol=0, atol=1e-3)


def test_it_carries_no_gradient_and_never_climbs() -> None:
    value = torch.randn(4, 2, requires_grad=True)
    found = gauss_newton_proposal(
        value, lambda z: (3 * z).sin(), lambda z: (3 * (3 * z).cos()).diag_embed(), 2, 0.05
    )
    assert not found.mean.requires_grad and not found.factor.requires_grad

    def energy(z: Tensor) -> Tensor:
        rest = (value - (3 * z).sin()) / 0.05
        return 0.5 * (rest.square().sum(-1) + z.square().sum(-1))

    assert (energy(found.mean) <= energy(torch.zeros_like(found.mean))).all()
