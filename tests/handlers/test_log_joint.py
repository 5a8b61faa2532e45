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
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.log_joint import LogJoint

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


@pytest.mark.long
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
    density.check_deterministic(u, "")
    hidden = LogJoint(model, density.sites[1:], (X, Y), {})
    with pytest.raises(SiteError, match="two evaluations .* differ by .* nats: do this"):
        hidden.check_deterministic(u[1:], ": do this")


def inside():
    z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
    pyro.sample("y", dist.Normal(0.0, (1 - z).sqrt()), obs=torch.tensor(1.0))


@pytest.mark.parametrize("validation", [True, False])
def test_searches_see_nan_outside_of_the_domain(validation):
    density, u = log_joint(inside), torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    with pyro.validation_enabled(validation):
        value = density.value(u)
        assert torch.isnan(value)
        assert torch.autograd.grad(value, u)[0].isnan().all()
        assert torch.equal(density.value(0 * u), density(0 * u))
        told = density.explain(u.detach())
    assert told == " (the log-density of site 'y' is nan)"


def test_errors_of_our_own_are_no_matter_of_the_domain():
    def model():
        pyro.sample("z", dist.Normal(0.0, 1.0))
        if len(runs) > 1:
            raise SiteError("a bug")
        runs.append(1)

    runs = []
    density = log_joint(model)
    runs.append(1)
    with pytest.raises(SiteError, match="a bug"):
        density.value(torch.zeros(1))


def test_what_makes_the_density_large_and_what_the_model_says():
    def model():
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        if z > 1:
            raise ValueError("too much of z\nand more")
        pyro.factor("f", 50 * z)

    density = log_joint(model)
    assert density.explain(torch.ones(1)) == " (the largest term is that of site 'f', 50)"
    assert density.explain(2 * torch.ones(1)) == " (the model says: too much of z)"


HITS = torch.tensor([18.0, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])


def batting(hits):
    """Of Pyro's examples: large concentrations make the terms of a Beta cancel."""
    m = pyro.sample("m", dist.Uniform(hits.new_zeros(()), 1.0))
    kappa = pyro.sample("kappa", dist.Pareto(hits.new_ones(()), 1.5))
    with pyro.plate("players", 18):
        phi = pyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        pyro.sample("hits", dist.Binomial(45, phi), obs=hits)


def test_double_precision_where_single_knows_nothing():
    """Against the same model on data in double precision throughout."""
    density, exact = log_joint(batting, HITS), log_joint(batting, HITS.double())
    noise = torch.randn(18, generator=torch.Generator().manual_seed(0))
    u = torch.cat([torch.tensor([-1.0, 14.5]), -1.0 + 3e-4 * noise])
    found = density.in_double(u)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(float(exact(u.double())), rel=1e-6)
    assert abs(float(density.value(u)) - float(found)) > 2  # and nats of it are rounding


@pytest.mark.parametrize("bad", ["weights", "domain", "cast"])
def test_single_precision_where_double_is_refused(bad):
    layer = torch.nn.Linear(2, 1)

    def stubborn():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        if bad == "domain" and w.dtype == torch.float64:
            raise ValueError("no")
        mean = layer(w) if bad == "weights" else w.float()
        pyro.sample("y", dist.Normal(mean.sum(), 1.0), obs=torch.zeros(()))

    density, u = log_joint(stubborn), torch.tensor([0.3, -0.2])
    with torch.no_grad():
        assert float(density.in_double(u)) == pytest.approx(float(density.value(u)), rel=1e-6)
