"""The model's density as a function of one flat vector."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import NonFiniteError, SiteError
from pyro_implicit.guides.log_joint import LogJoint

X = torch.linspace(-1, 1, 5, dtype=torch.float64)
Y = X.sin()


def model(x, y=None):
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("groups", 2, dim=-2):
        w = pyro.sample("w", dist.Normal(x.new_zeros(()), 1.0))
    with pyro.plate("data", 10, subsample_size=len(x), dim=-1):
        pyro.sample("y", dist.Normal((w * x).sum(-2), scale), obs=y)


def log_joint(program=model, *args):
    guide = HyperNetworkGuide(program).setup(*args)
    return LogJoint(program, guide.sites, args, {})


@given(seed=st.integers(0, 99))
def test_it_is_prior_plus_scaled_likelihood_plus_log_jacobian(seed):
    torch.manual_seed(seed)
    density = log_joint(model, X, Y)
    u = torch.randn(3, dtype=torch.float64)
    scale, w = u[0].exp(), u[1:]
    mean = (w[:, None] * X).sum(0)
    expected = (
        dist.LogNormal(0.0, 1.0).log_prob(scale)
        + u[0]  # log d scale / d u
        + dist.Normal(0.0, 1.0).log_prob(w).sum()
        + 2 * dist.Normal(mean, scale).log_prob(Y).sum()  # 5 of 10 rows
    )
    torch.testing.assert_close(density(u), expected, rtol=1e-6, atol=1e-6)


def test_values_are_constrained_and_shaped():
    density = log_joint(model, X, Y)
    values, correction = density.values(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(values["scale"], torch.tensor(1.0, dtype=torch.float64).exp())
    assert values["w"].tolist() == [[2.0], [3.0]]
    torch.testing.assert_close(correction, torch.tensor(1.0, dtype=torch.float64))


def test_it_is_hidden_from_whoever_watches():
    density = log_joint(model, X, Y)
    with poutine.trace() as watcher:
        density(torch.zeros(3, dtype=torch.float64))
    assert not [n for n, node in watcher.trace.nodes.items() if node["type"] == "sample"]


def test_a_density_that_draws_something_is_refused():
    density = log_joint(model, X, Y)
    u = torch.zeros(3, dtype=torch.float64)
    density.check_deterministic(u)
    hidden = LogJoint(model, density.sites[1:], (X, Y), {})
    with pytest.raises(SiteError, match="two evaluations .* differ by .*hidden from this guide"):
        hidden.check_deterministic(u[1:])


def test_a_density_that_is_not_finite_at_the_start_is_refused():
    bad = Y.clone()
    bad[0] = torch.nan
    with pyro.validation_enabled(False):
        density = LogJoint(model, log_joint(model, X, Y).sites, (X, bad), {})
        with pytest.raises(NonFiniteError, match="log-density at the start is nan"):
            density.check_deterministic(torch.zeros(3, dtype=torch.float64))
