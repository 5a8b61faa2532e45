"""Densities of large numbers, against SciPy and quadrature."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.distributions.transforms import affine_autoregressive
from scipy import stats
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, evaluate, fit, log_predictive_density, to_arviz
from pyro_implicit.diagnostics import khat
from pyro_implicit.handlers.observations.large_numbers import (
    InDouble,
    in_double_if_large,
    precise_log_prob,
    warning_of_rounding,
)

MILLIONS = torch.tensor(2e6)
CASES: list[tuple[Any, Tensor, float]] = [
    (dist.Poisson(MILLIONS), MILLIONS + 500, stats.poisson.logpmf(2_000_500, 2e6)),
    (dist.Poisson(MILLIONS), MILLIONS.long(), stats.poisson.logpmf(2_000_000, 2e6)),
    (
        dist.Binomial(1e7, probs=torch.tensor(0.25)),
        torch.tensor(2_500_100.0),
        stats.binom.logpmf(2_500_100, 10_000_000, 0.25),
    ),
    (
        dist.Beta(torch.tensor(1e6), torch.tensor(1e6)),
        torch.tensor(0.5),
        stats.beta.logpdf(0.5, 1e6, 1e6),
    ),
    (
        dist.Gamma(torch.tensor(1e6), torch.tensor(1.0)),
        torch.tensor(1e6),
        stats.gamma.logpdf(1e6, 1e6),
    ),
    (
        dist.Multinomial(4_000_000, probs=torch.tensor([0.25, 0.75])),
        torch.tensor([1e6, 3e6]),
        stats.binom.logpmf(1_000_000, 4_000_000, 0.25),
    ),
    (
        dist.BetaBinomial(torch.tensor(256.0), torch.tensor(768.0), torch.tensor(1e7)),
        torch.tensor(2.5e6),
        stats.betabinom.logpmf(2_500_000, 10_000_000, 256, 768),
    ),
    (
        dist.ZeroInflatedPoisson(rate=MILLIONS, gate=torch.tensor(0.5)),
        MILLIONS,
        stats.poisson.logpmf(2_000_000, 2e6) + math.log(0.5),
    ),
    (
        dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Poisson(MILLIONS.expand(2))),
        MILLIONS,
        stats.poisson.logpmf(2_000_000, 2e6),
    ),
    (
        dist.Poisson(MILLIONS.expand(3)).to_event(1).mask(torch.tensor(True)),
        MILLIONS.expand(3),
        3 * stats.poisson.logpmf(2_000_000, 2e6),
    ),
]


@pytest.mark.parametrize("fn, value, exact", CASES, ids=lambda one: type(one).__name__)
def test_log_densities_are_those_of_scipy(fn: Any, value: Tensor, exact: float) -> None:
    wide, there = in_double_if_large(fn, value)
    assert abs(float(fn.log_prob(value)) - exact) > 0.05  # which single precision does not tell
    assert float(wide.log_prob(there)) == pytest.approx(exact, abs=1e-3)
    assert value.dtype != torch.float64 and fn.log_prob(value).dtype == torch.float32  # unchanged


@settings(max_examples=50, deadline=None)
@given(st.floats(0.1, 900.0), st.integers(0, 900))
def test_small_numbers_stay_as_they_are(rate: float, count: int) -> None:
    fn, value = dist.Poisson(torch.tensor(rate)), torch.tensor(float(count))
    assert in_double_if_large(fn, value) == (fn, value)
    exact = stats.poisson.logpmf(count, float(torch.tensor(rate)))
    assert float(fn.log_prob(value)) == pytest.approx(exact, abs=0.02)


def test_other_distributions_and_mapped_draws_stay_as_they_are() -> None:
    normal, value = dist.Normal(1e6, 1.0), torch.tensor(1e6)
    assert in_double_if_large(normal, value) == (normal, value)
    assert in_double_if_large(normal, None) == (normal, None)

    def density(rate: Tensor) -> Tensor:
        fn, there = in_double_if_large(dist.Poisson(rate, validate_args=False), rate.detach())
        return fn.log_prob(there)

    assert torch.func.vmap(density)(MILLIONS.expand(2)).dtype == torch.float32


def test_what_is_observed_is_in_double_within() -> None:
    with InDouble(), pyro.poutine.trace() as found:
        pyro.sample("y", dist.Poisson(torch.tensor(3.0)), obs=torch.tensor(2))
        pyro.sample("z", dist.Normal(0.0, 1.0), obs=torch.tensor(2.0))
    assert found.trace.nodes["y"]["value"].dtype == torch.float64
    assert found.trace.nodes["z"]["value"].dtype == torch.float32


RATE = math.log(2e6)


def counts(y: Tensor | None = None) -> None:
    rate = pyro.sample("rate", dist.Normal(RATE, 0.1))
    with pyro.plate("data", 50):
        pyro.sample("y", dist.Poisson(rate.exp()), obs=y)


@pytest.fixture(scope="module")
def y() -> Tensor:
    return torch.poisson(torch.full((50,), 2e6), torch.Generator().manual_seed(0))


def exact_log_evidence(y: Tensor) -> float:
    sd = 1 / math.sqrt(50 * 2e6)
    grid = math.log(float(y.double().mean())) + torch.linspace(-8, 8, 2001).double() * sd
    values = dist.Poisson(grid.exp()[:, None]).log_prob(y.double()).sum(-1)
    values = values + dist.Normal(RATE, 0.1).log_prob(grid)
    return float(values.logsumexp(0) + (grid[1] - grid[0]).log())


@pytest.mark.long
def test_scores_are_those_of_double_precision(y: Tensor) -> None:
    def guide(y: Tensor | None = None) -> None:
        pyro.sample("rate", dist.Normal(RATE, 1e-4))

    rates = (RATE + 1e-4 * torch.randn(4000, 1).double()).exp()
    exact = dist.Poisson(rates).log_prob(y.double()).logsumexp(0) - math.log(4000)
    report = evaluate(counts, guide, y, num_samples=200)
    assert report.log_density.value == pytest.approx(float(exact.mean()), abs=0.02)
    density = log_predictive_density(counts, guide, y, num_samples=200)
    assert float(density.mean()) == pytest.approx(float(exact.mean()), abs=0.02)
    likelihood = to_arviz(counts, guide, y, num_samples=200)["log_likelihood"]["y"].values[0]
    found = np.logaddexp.reduce(likelihood, axis=0) - math.log(200)
    assert found.mean() == pytest.approx(float(exact.mean()), abs=0.02)


@pytest.mark.long
@pytest.mark.automatic_start
def test_a_fit_tells_and_data_in_double_mend_it(y: Tensor) -> None:
    evidence = exact_log_evidence(y)
    with pytest.warns(UserWarning, match=r"numbers up to 2e\+06.*y.double\(\)"):
        fit(counts, HyperNetworkGuide(counts), y, num_steps=2, seed=0, progress=False)
    guide = HyperNetworkGuide(counts)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the limit of")
        result = fit(counts, guide, y.double(), num_steps=300, seed=0, progress=False)
    assert result.loss == pytest.approx(-evidence, abs=0.3)
    assert not any("peak" in text for text in result.warnings)
    assert khat(counts, guide, y).log_evidence == pytest.approx(evidence, abs=0.1)


def test_nothing_is_told_of_others() -> None:
    with pyro.poutine.trace() as found:
        pyro.sample("few", dist.Poisson(torch.tensor(2000.0)), obs=torch.tensor(2000.0))
        pyro.sample("wide", dist.Poisson(MILLIONS.double()), obs=MILLIONS.double())
        pyro.sample("share", dist.Beta(MILLIONS, MILLIONS), obs=torch.tensor(0.5))
    assert [warning_of_rounding(found.trace.nodes[name]) for name in ("few", "wide", "share")] == [
        ""
    ] * 3


class WithNetwork(dist.StudentT):
    """A distribution of one's own that joins its value with a network."""

    def __init__(self, net: nn.Module | None) -> None:
        super().__init__(torch.tensor(5.0), torch.zeros(()), torch.ones(()), validate_args=False)
        self.net = net
        self.weight = torch.ones(1, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        shift = self.net(value[..., None]) if self.net else nn.Linear(1, 1)(value[..., None])
        return super().log_prob(value - shift[..., 0])


@pytest.mark.parametrize("net", [nn.Linear(1, 1), None])
def test_densities_with_networks_keep_their_precision(net: Any) -> None:
    fn, value = WithNetwork(net), torch.full((3,), 2e6)
    assert precise_log_prob(fn, value).dtype == torch.float32
    base = dist.StudentT(5.0, torch.zeros(2), 1.0).to_event(1)
    flow = dist.TransformedDistribution(base, [affine_autoregressive(2)])
    value = torch.full((3, 2), 2e6)
    assert in_double_if_large(flow, value) == (flow, value)
    inverse = dist.InverseGamma(torch.tensor(1e5), torch.tensor(1e5))
    exact = stats.invgamma.logpdf(1.0, 1e5, scale=1e5)
    assert float(precise_log_prob(inverse, torch.tensor(1.0))) == pytest.approx(exact, abs=1e-3)
