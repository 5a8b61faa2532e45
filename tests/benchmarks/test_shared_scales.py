"""The exact posterior of a scale that many latents share, by the covariance of all data."""

from __future__ import annotations

import pytest
import torch

from benchmarks.posterior import shared_scales


def test_densities_are_those_of_all_data_together() -> None:
    y, s = torch.randn(shared_scales.EACH, 4).double(), 0.7
    group = torch.arange(4).repeat(shared_scales.EACH)
    covariance = 4 + s**2 * (group[:, None] == group) + torch.eye(len(group))
    joint = torch.distributions.MultivariateNormal(
        torch.zeros(len(group)).double(), covariance.double()
    )
    torch.testing.assert_close(shared_scales._of_groups(y, s), joint.log_prob(y.flatten()))
    steps = torch.randn(200_000, 5)
    levels = 2 * torch.randn(200_000, 1) + s * steps.cumsum(-1) + torch.randn(200_000, 5)
    drawn = torch.distributions.MultivariateNormal(torch.zeros(5), levels.mT.cov())
    value = torch.randn(5)
    found = shared_scales._of_walk(value.double(), s)
    assert float(found) == pytest.approx(float(drawn.log_prob(value)), abs=0.05)


def test_quadrature_has_the_moments_of_a_known_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    """The density of one datum ``y ~ N(s, 0.1)`` far from the prior's edge at zero."""
    prior = 2.0
    datum = torch.tensor([1.5])
    evidence, mean, deviation = shared_scales.exactly(
        datum, prior, lambda y, s: torch.distributions.Normal(s, 0.1).log_prob(y).sum()
    )
    precision = 1 / 0.01 + 1 / prior**2
    assert mean == pytest.approx(150 / precision, rel=1e-4)
    assert deviation == pytest.approx(precision**-0.5, rel=1e-3)
    total = torch.distributions.Normal(0.0, (prior**2 + 0.01) ** 0.5).log_prob(datum).sum()
    assert evidence == pytest.approx(float(total) + 0.693147, abs=1e-3)
