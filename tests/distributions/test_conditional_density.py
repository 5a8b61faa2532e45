"""The Gaussian that theta is given the noise: its centre and its density."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators import MLPGenerator, Preconditioner

FACTORS = {
    "none": None,
    "diagonal": torch.tensor([0.5, 2.0, 1.5]),
    "full": torch.tensor([[0.5, 0.0, 0.0], [1.0, 2.0, 0.0], [-1.0, 0.3, 1.5]]),
}


@pytest.mark.parametrize("scale", [0.3, torch.tensor([0.1, 0.5, 2.0])], ids=["number", "vector"])
@pytest.mark.parametrize("factor", FACTORS.values(), ids=list(FACTORS))
def test_it_is_the_gaussian_through_the_preconditioner(factor, scale):
    loc = torch.tensor([1.0, -2.0, 0.5])
    preconditioner = Preconditioner(loc, factor)
    fn = ImplicitDistribution(MLPGenerator(2, 3, (4,)), scale=scale, preconditioner=preconditioner)
    noise = torch.randn(5, 4, 2)
    given = fn.given(noise)
    square = torch.eye(3) if factor is None else (factor.diag() if factor.dim() == 1 else factor)
    mean = loc + fn.generator(noise) @ square.mT
    torch.testing.assert_close(given.mean, mean)
    covariance = square @ torch.diag(torch.as_tensor(scale).expand(3) ** 2) @ square.mT
    expected = dist.MultivariateNormal(mean, covariance)
    for value in (torch.randn(3), torch.randn(5, 4, 3), torch.randn(7, 1, 1, 3)):
        found = given.conditional_log_prob(value)
        torch.testing.assert_close(found, expected.log_prob(value), rtol=1e-4, atol=1e-4)


def test_what_has_none_says_so():
    fn = ImplicitDistribution(MLPGenerator(2, 3, (4,)), scale=0.1)
    with pytest.raises(ArgumentError, match="no noise is fixed: write distribution.given"):
        fn.mean  # noqa: B018
    with pytest.raises(ArgumentError, match="no noise is fixed: there is no Gaussian"):
        fn.conditional_log_prob(torch.zeros(3))
    pure = ImplicitDistribution(MLPGenerator(2, 3, (4,)), torch.zeros(2))
    with pytest.raises(ArgumentError, match="scale=0: there is no Gaussian"):
        pure.conditional_log_prob(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"value of shape \(2,\); expected \(..., 3\)"):
        fn.given(torch.zeros(2)).conditional_log_prob(torch.zeros(2))
