"""init_from: a guide starts as the Gaussian that it is given, and says which it cannot use."""

from __future__ import annotations

import math
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, SiteError
from pyro_implicit.generators import ResidualGenerator
from pyro_implicit.guides.initialization import gaussian_start
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart

N, NOISE = 12, 0.4
X = torch.linspace(-2, 2, 3 * N, dtype=torch.float64).sin().reshape(N, 3)
X[:, 2] = X[:, 1] + 0.05 * X[:, 0]  # correlated, and not well scaled
Y = X.sum(-1) + 0.3 * torch.cos(9 * X[:, 0])


def model():
    """A linear-Gaussian model in two sites."""
    a = pyro.sample("a", dist.Normal(X.new_zeros(()), 3.0))
    b = pyro.sample("b", dist.Normal(X.new_zeros(2), 2.0).to_event(1))
    with pyro.plate("data", N):
        f = X[:, 0] * a.unsqueeze(-1) + (X[:, 1:] * b.unsqueeze(-2)).sum(-1)
        pyro.sample("y", dist.Normal(f, NOISE), obs=Y)


def posterior():
    precision = X.mT @ X / NOISE**2 + torch.diag(X.new_tensor([9.0, 4.0, 4.0]).reciprocal())
    covariance = precision.inverse()
    return covariance @ X.mT @ Y / NOISE**2, covariance


def start_of(guide):
    preconditioner = guide.samplers[0].preconditioner
    factor = preconditioner.factor
    covariance = factor.diag().square() if factor.dim() == 1 else factor @ factor.mT
    return preconditioner.loc, covariance


def flat_draws(guide, num_samples=20_000):
    draws = guide.sample(num_samples)
    return torch.cat([draws["a"][:, None], draws["b"]], -1)


def assert_first_draws(guide, mean, covariance):
    """The network's part of a start has a twentieth of the deviation."""
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, (flat_draws(guide) - mean).mT, upper=False)
    assert white.mean(1).abs().max() < 0.1
    torch.testing.assert_close(white.cov(), torch.eye(3).double(), rtol=0, atol=0.2)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"generator": ResidualGenerator}])
def test_laplace_is_the_exact_posterior_of_a_linear_gaussian_model(options):
    guide = HyperNetworkGuide(model, init_from="laplace", **options).setup()
    mean, covariance = posterior()
    loc, found = start_of(guide)
    torch.testing.assert_close(loc, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, covariance, rtol=1e-5, atol=1e-8)
    assert_first_draws(guide, mean, covariance)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hessian", "ggn", "full-rank"])
def test_averaged_curvature_is_the_exact_posterior_of_a_linear_gaussian_model(kind):
    guide = HyperNetworkGuide(model, init_from=kind).setup()
    mean, covariance = posterior()
    loc, found = start_of(guide)
    torch.testing.assert_close(found, covariance, rtol=1e-5, atol=1e-8)
    assert (loc - mean) @ torch.linalg.solve(covariance, loc - mean) < 1.0  # in deviations
    assert_first_draws(guide, loc, covariance)


@pytest.mark.long
def test_factorised_starts_are_the_conditionals():
    """Of all Gaussians in such blocks the nearest to the posterior by the bound's divergence."""
    guide = HyperNetworkGuide(model, init_from="laplace", factorized=True).setup()
    mean, covariance = posterior()
    for sampler, rows in zip(guide.samplers, (slice(0, 1), slice(1, 3)), strict=True):
        factor = sampler.preconditioner.factor
        torch.testing.assert_close(sampler.preconditioner.loc, mean[rows], rtol=1e-5, atol=1e-6)
        given = torch.linalg.inv(torch.linalg.inv(covariance)[rows, rows])
        torch.testing.assert_close(factor @ factor.mT, given, rtol=1e-4, atol=1e-8)


def test_splitting_a_start():
    loc = torch.arange(3.0)
    assert [s.loc.tolist() for s in GaussianStart(loc).split([1, 2])] == [[0.0], [1.0, 2.0]]
    assert GaussianStart(loc).split([1, 2])[0].factor is None
    assert [s.guess for s in GaussianStart(loc, guess=0.1).split([1, 2])] == [0.1, 0.1]
    diagonal = GaussianStart(loc, torch.tensor([1.0, 2.0, 3.0])).split([1, 2])
    assert [s.factor.tolist() for s in diagonal] == [[1.0], [2.0, 3.0]]


def swapped():
    """The same sites in another order."""
    b = pyro.sample("b", dist.Normal(X.new_zeros(2), 2.0).to_event(1))
    a = pyro.sample("a", dist.Normal(X.new_zeros(()), 3.0))
    with pyro.plate("data", N):
        f = X[:, 0] * a.unsqueeze(-1) + (X[:, 1:] * b.unsqueeze(-2)).sum(-1)
        pyro.sample("y", dist.Normal(f, NOISE), obs=Y)


def scattered(kind, program):
    """A Gaussian guide with parameters of no particular order."""
    guide = kind(program)
    guide()
    with torch.no_grad():
        for name, parameter in guide.named_parameters():
            parameter += torch.randn_like(parameter) * (0.3 if "scale" in name else 1.0)
    return guide


def moments_of(guide, num_samples=10_000):
    with torch.no_grad(), pyro.plate("draws", num_samples, dim=-1):
        draws = guide()
    flat = torch.cat([draws["a"][:, None], draws["b"]], -1)
    return flat.mean(0), flat.mT.cov()


@pytest.mark.parametrize("program", [model, swapped])
@pytest.mark.parametrize(
    "kind",
    [
        AutoNormal,
        AutoDiagonalNormal,
        AutoMultivariateNormal,
        partial(AutoLowRankMultivariateNormal, rank=1),
    ],
)
def test_a_guide_starts_as_a_fitted_gaussian_whatever_the_order_of_its_sites(kind, program):
    fitted = scattered(kind, program)
    guide = HyperNetworkGuide(model, init_from=fitted).setup()
    loc, covariance = start_of(guide)
    mean, expected = moments_of(fitted)
    deviations = expected.diagonal().sqrt()
    assert ((loc - mean) / deviations).abs().max() < 0.1
    outer = deviations[:, None] * deviations
    assert ((covariance - expected) / outer).abs().max() < 0.12
    assert_first_draws(guide, loc, covariance)


def test_a_fitted_gaussian_is_no_part_of_the_guide_and_stays_as_it_is():
    fitted = scattered(AutoMultivariateNormal, model)
    before = {name: p.detach().clone() for name, p in fitted.named_parameters()}
    guide = HyperNetworkGuide(model, init_from=fitted).setup()
    assert all(torch.equal(p, before[name]) for name, p in fitted.named_parameters())
    names = {name for name, _ in guide.named_parameters()}
    assert all(name.startswith("_samplers") for name in names)


def test_a_constrained_site_starts_in_its_unconstrained_space():
    def positive():
        pyro.sample("s", dist.LogNormal(X.new_tensor(1.0), 0.25))

    fitted = scattered(AutoNormal, positive)
    for kind in ("laplace", fitted):
        guide = HyperNetworkGuide(positive, init_from=kind).setup()
        loc, covariance = start_of(guide)
        if kind == "laplace":
            expected = (1.0, 0.25)
        else:
            expected = (fitted.locs.s.item(), fitted.scales.s.item())
        assert loc.item() == pytest.approx(expected[0], abs=1e-4)
        assert covariance.item() ** 0.5 == pytest.approx(expected[1], rel=1e-4)


def test_what_pyros_laplace_approximation_returns():
    laplace = AutoLaplaceApproximation(model)
    laplace()
    with torch.no_grad():
        laplace.loc.copy_(posterior()[0])
    with pytest.raises(ArgumentError, match="AutoLaplaceApproximation.*expected a Gaussian"):
        HyperNetworkGuide(model, init_from=laplace).setup()
    guide = HyperNetworkGuide(model, init_from=laplace.laplace_approximation()).setup()
    torch.testing.assert_close(start_of(guide)[1], posterior()[1], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [AutoDelta, partial(AutoIAFNormal, hidden_dim=[4])])
def test_guides_that_are_not_gaussian(kind):
    def single():  # Pyro's flow is float32 only
        pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    guide = kind(single)
    guide()
    with pytest.raises(ArgumentError, match=r"init_from is a Auto\w+; expected a Gaussian"):
        HyperNetworkGuide(single, init_from=guide).setup()


def test_a_list_is_no_gaussian():
    fitted = AutoGuideList(model)
    fitted.append(AutoNormal(poutine.block(model, expose=["a"])))
    fitted.append(AutoNormal(poutine.block(model, expose=["b"])))
    fitted()
    with pytest.raises(ArgumentError, match="init_from is a AutoGuideList; expected a Gaussian"):
        HyperNetworkGuide(model, init_from=fitted).setup()


def test_fitted_guides_that_do_not_fit():
    with pytest.raises(ArgumentError, match="a AutoNormal that has not been fitted"):
        HyperNetworkGuide(model, init_from=AutoNormal(model)).setup()

    def other():
        pyro.sample("c", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"init_from has sites \['c'\]; .* \['a', 'b'\]"):
        HyperNetworkGuide(model, init_from=scattered(AutoNormal, other)).setup()

    def larger():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(torch.zeros(5), 1.0).to_event(1))

    for kind in (AutoNormal, AutoMultivariateNormal):
        with pytest.raises(ArgumentError, match="init_from has 6 latent entries; this guide has 3"):
            HyperNetworkGuide(model, init_from=scattered(kind, larger)).setup()


@pytest.mark.parametrize("kind", ["laplace", "hessian", "ggn", "full-rank"])
def test_too_many_latents_for_a_full_matrix(kind, monkeypatch):
    monkeypatch.setattr(gaussian_start, "_MAX_LATENTS_FOR_FULL_MATRIX", 2)
    with pytest.raises(ArgumentError, match=f"init_from='{kind}' needs a 3 x 3 matrix; .* most 2"):
        HyperNetworkGuide(model, init_from=kind).setup()


@pytest.mark.parametrize("kind", ["laplace", "hessian", "ggn", "full-rank"])
def test_a_random_density_has_no_mode(kind):
    half = poutine.block(model, hide=["b"])
    with pytest.raises(SiteError, match="no one mode to start from"):
        HyperNetworkGuide(half, init_from=kind).setup()


@pytest.mark.parametrize("kind", ["laplace", "hessian", "ggn", "full-rank"])
def test_a_minibatch_of_local_latents_has_no_mode(kind):
    def local():
        with pyro.plate("data", N, subsample_size=4, dim=-1) as idx:
            z = pyro.sample("z", dist.Normal(X.new_zeros(4), 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y[idx])

    plates = partial(pyro.plate, "data", N, subsample_size=4, dim=-1)
    with pytest.raises(SiteError, match="needs all data at once, but site 'z' is in plate 'data'"):
        HyperNetworkGuide(local, init_from=kind, create_plates=plates).setup()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Encountered")
def test_a_density_without_a_mode():
    def unbounded():
        z = pyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
        pyro.factor("runaway", z)

    with pytest.raises(NonFiniteError, match="search for the posterior mode ended"):
        HyperNetworkGuide(unbounded, init_from="laplace").setup()


@pytest.mark.parametrize("kind", ["laplace", "full-rank", "mean-field"])
def test_a_network_with_dropout_is_in_evaluation_mode_for_each_start(kind: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    x, y = torch.randn(20, 1), torch.randn(20)

    def model(x, y=None):
        pyro.module("net", net)
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(net(x).squeeze(-1), s), obs=y)

    with pytest.warns(UserWarning, match="evaluated without their randomness: 1 of Sequential"):
        HyperNetworkGuide(model, init_from=kind).setup(x, y)
    assert net.training


@pytest.mark.long
@pytest.mark.parametrize("kind", ["auto", "laplace", "full-rank", "hessian", "mean-field"])
def test_a_factorised_guide_starts_as_the_best_of_its_form(kind: str) -> None:
    """Deviations given the other latent, 0.436; those of the marginals are 1."""
    correlation, given = 0.9, math.sqrt(1 - 0.81)

    def model() -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(correlation * a, given))

    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model, init_from=kind, factorized=True).setup()
    draws = guide.sample(20_000)
    for name in ("a", "b"):
        assert draws[name].std().item() == pytest.approx(given, rel=0.15)
