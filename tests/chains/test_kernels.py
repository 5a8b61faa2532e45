"""Both kernels: the moments of known densities, bias by step size, invariance, refusals."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import kstest

from pyro_implicit import refine
from pyro_implicit.chains import HMC, MCLMC
from pyro_implicit.chains.convergence import effective_sizes
from pyro_implicit.chains.kernels import kernel_from, make_kernel
from pyro_implicit.exceptions import ArgumentError
from tests.chains.models import banana, funnel, gaussian, two_modes

KERNELS = {"mclmc": MCLMC(energy_error=1e-3), "hmc": HMC()}


def covariance(condition: float, size: int = 4) -> torch.Tensor:
    torch.manual_seed(1)
    basis = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0]
    return (basis * torch.logspace(0, math.log10(condition), size, dtype=torch.float64)) @ basis.mT


def drawn(model, kernel, num_steps=800, start=8, **options):
    options = {"num_chains": 8, "seed": 0, "progress": False} | options
    return refine(model, start, kernel=kernel, num_steps=num_steps, **options)


@pytest.fixture
def closed(monkeypatch):
    """Puts a density and its gradient in closed form where a graph would be, after a comparison."""

    def put(log_density, gradient):
        def evaluate(u):
            return log_density(u), gradient(u)

        def stand_in(function, u):
            for mine, models in zip(evaluate(u), function(u), strict=True):
                torch.testing.assert_close(
                    mine - mine[:1], models - models[:1], rtol=1e-4, atol=1e-4
                )
            return evaluate

        monkeypatch.setattr("pyro_implicit.chains.density.record", stand_in)

    return put


def normal_of(precision):
    """Log-density, up to a constant, and gradient."""
    return lambda u: -0.5 * ((u @ precision) * u).sum(-1), lambda u: -u @ precision


# ---- the moments of known densities


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_an_ill_conditioned_gaussian(name, closed):
    true = covariance(1e4)
    closed(*normal_of(torch.linalg.inv(true)))
    chains = drawn(gaussian(true), KERNELS[name], 900, dtype=torch.float64)
    whitened = torch.linalg.solve_triangular(
        torch.linalg.cholesky(true), chains.draws["x"].double().flatten(0, 1).mT, upper=False
    )
    assert whitened.mean(1).abs().max() < 0.15
    torch.testing.assert_close(whitened.cov(), torch.eye(4).double(), rtol=0, atol=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 30, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_ill_conditioned_gaussians_with_long_chains(name, size):
    """Above 64 latents with deviations alone, and so along the axes."""
    true = covariance(1e4, size)
    kernel = KERNELS[name]
    if size > 64:
        true = torch.diag(torch.logspace(0, 4, size, dtype=torch.float64))
        kernel = type(kernel)(**{**vars(kernel), "precondition": "diagonal"})
    chains = drawn(gaussian(true), kernel, 6000, dtype=torch.float64)
    draws = chains.draws["x"].double()
    root = torch.linalg.cholesky(true)
    whitened = torch.linalg.solve_triangular(root, draws.flatten(0, 1).mT, upper=False)
    by_chain = whitened.mT.unflatten(0, draws.shape[:2])
    sizes = effective_sizes({"x": by_chain, "square": by_chain.square()})
    chance = {name: 4 / size.double().sqrt() for name, size in sizes.items()}  # the largest of many
    assert min(float(size.min()) for size in sizes.values()) > 100
    # with what the bias may be; the variance of a square is 2
    assert (whitened.mean(1).abs() < chance["x"] + 0.02).all()
    assert ((whitened.std(1) - 1).abs() < chance["square"] / 2**0.5 + 0.02).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_banana(name):
    chains = drawn(banana, KERNELS[name], 6000)
    a, b = (chains.draws[key].double() for key in "ab")
    # b = a^2 / 4 + N(0, 1) has mean 1 and variance 2 + 1
    known = {"a": (a, 0.0), "a^2": (a**2, 4.0), "b": (b, 1.0), "b^2": ((b - 1) ** 2, 3.0)}
    for what, (values, truth) in {**known, "rest": ((b - a**2 / 4) ** 2, 1.0)}.items():
        size = float(effective_sizes({what: values})[what])
        error = abs(float(values.mean()) - truth) / float(values.std())
        # chance, and what the bias of a step size may be
        assert size > 60 and error < 4 / math.sqrt(size) + 0.02, (what, size, error)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_two_modes_that_a_chain_can_cross(name):
    chains = drawn(two_modes, KERNELS[name], 5000)
    x = chains.draws["x"].flatten(0, 1).double()
    assert abs(float((x[:, 0] > 0).double().mean()) - 0.5) < 0.08
    assert abs(float(x[:, 0].square().mean()) - 5.0) < 0.3
    assert abs(float(x[:, 1].std()) - 1) < 0.08


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_funnel(name):
    start = {"v": torch.zeros(8), "x": torch.randn(8, 3)}
    kernel = MCLMC(energy_error=3e-4) if name == "mclmc" else HMC(target_accept=0.9)
    chains = drawn(funnel, kernel, 8000, start)
    v = chains.draws["v"].flatten().double()
    assert abs(float(v.mean())) < 0.15 and abs(float(v.std()) - 1) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_chains_from_different_places_agree(name):
    true = covariance(100.0, 6)
    far = 8 * torch.linalg.cholesky(true).float() @ torch.randn(6, 8)
    one, other = (
        drawn(gaussian(true), KERNELS[name], 3000, start, dtype=torch.float64, seed=seed)
        for seed, start in ((0, 8), (1, far.mT))
    )
    scale = true.diagonal().sqrt()
    for moment in (lambda x: x.mean(0) / scale, lambda x: x.std(0) / scale):
        a, b = (moment(c.draws["x"].double().flatten(0, 1)) for c in (one, other))
        assert (a - b).abs().max() < 0.12
    assert float(one.r_hat()["x"].max()) < 1.05


# ---- bias and invariance


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the step size of mclmc biases")  # as it is to
def test_the_bias_of_mclmc_falls_with_its_energy_error():
    """Variances of a standard normal in ten dimensions: too large by a third, a tenth, little."""
    found = {}
    for error in (0.5, 0.02, 1e-3):
        kernel = MCLMC(energy_error=error, precondition=None)
        chains = drawn(gaussian(torch.eye(10).double()), kernel, 6000, num_chains=16)
        found[error] = float(chains.draws["x"].square().mean()) - 1
    assert found[0.5] > found[0.02] + 0.03 and found[0.02] > 0.02
    assert abs(found[1e-3]) < 0.05 and abs(found[1e-3]) < found[0.02]


def rough():
    """Not normal, with exact draws: a Gamma, and a normal with the Gamma for its precision."""
    g = pyro.sample("g", dist.Gamma(3.0, 2.0))
    pyro.sample("x", dist.Normal(0.0, g.rsqrt()))


def _after_steps(kernel, num_steps, count=3000):
    """Chains that begin at exact draws, after some steps without any warm-up."""
    torch.manual_seed(3)
    g = dist.Gamma(3.0, 2.0).sample((count,))
    start = {"g": g, "x": torch.randn(count) * g.rsqrt()}
    chains = refine(
        rough,
        start,
        num_chains=count,
        num_steps=num_steps,
        num_warmup=0,
        kernel=kernel,
        seed=0,
        progress=False,
    )
    draws = {key: value[:, -1].double() for key, value in chains.draws.items()}
    return draws, float(chains.sample_stats["acceptance_rate"].mean())


@pytest.mark.long
def test_hmc_leaves_the_density_as_it_is_however_large_its_steps():
    draws, accepted = _after_steps(HMC(step_size=0.9, trajectory=3.0), 30)
    assert 0.3 < accepted < 0.9  # it would be far off without the accept step
    assert kstest(draws["g"].numpy(), "gamma", args=(3.0, 0.0, 0.5)).pvalue > 0.001
    scaled = draws["x"] * draws["g"].sqrt()
    assert kstest(scaled.numpy(), "norm").pvalue > 0.001


@pytest.mark.long
def test_that_test_would_see_a_missing_accept_step(monkeypatch):
    monkeypatch.setattr("pyro_implicit.chains.hmc.where", lambda accepted, new, old: new)
    g = _after_steps(HMC(step_size=0.9, trajectory=3.0), 30)[0]["g"]
    assert kstest(g[g.isfinite()].numpy(), "gamma", args=(3.0, 0.0, 0.5)).pvalue < 1e-6


# ---- tuning, refusals and settings


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the step size of mclmc biases these chains")
def test_step_sizes_are_tuned_to_what_was_asked_for(closed):
    closed(lambda u: -0.5 * u.square().sum(-1), lambda u: -u)
    model = gaussian(torch.eye(20))
    for size, wanted in ((20, 1.25e-3), (65, 5e-3)):  # few latents have the smaller bias
        settings = MCLMC(precondition=None, thin=1)
        chains = drawn(gaussian(torch.eye(size)), settings, 300)
        error = chains.sample_stats["energy_error"].double().square().mean() / size
        assert 0.4 * wanted < float(error) < 2.5 * wanted
        assert chains.sample_stats["step_size"].std(1).max() == 0  # fixed after the warm-up
    chains = drawn(model, HMC(target_accept=0.9), 400)
    assert 0.8 < float(chains.sample_stats["acceptance_rate"].mean()) < 0.97


@pytest.mark.long
def test_a_step_size_of_ones_own_is_kept(closed):
    closed(lambda u: -0.5 * u.square().sum(-1), lambda u: -u)
    model = gaussian(torch.eye(3))
    for kernel in (MCLMC(step_size=0.3), HMC(step_size=0.3)):
        size = drawn(model, kernel, 60).sample_stats["step_size"]
        assert bool(((size - 0.3).abs() < 0.031).all())


def wall():
    """Half a normal: without a density below zero."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("wall", torch.where(x[0] > 0, 0.0, -math.inf))


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_steps_out_of_the_domain_are_refused_and_told(name, closed):
    closed(lambda u: torch.where(u[:, 0] > 0, -0.5 * u.square().sum(-1), -math.inf), lambda u: -u)
    start = torch.full((8, 2), 0.5)
    chains = drawn(wall, KERNELS[name], 400, start)
    assert bool((chains.draws["x"][..., 0] > 0).all())
    assert bool(chains.sample_stats["diverging"].any())
    assert bool(chains.sample_stats["lp"].isfinite().all())


@pytest.mark.long
def test_one_dimension_is_for_hmc_alone(closed):
    def model():
        pyro.sample("x", dist.Normal(3.0, 2.0))

    with pytest.raises(ArgumentError, match="needs two latents at least.*kernel='hmc'"):
        drawn(model, "mclmc", 20)
    closed(lambda u: -0.125 * (u[:, 0] - 3) ** 2, lambda u: -0.25 * (u - 3))
    x = drawn(model, "hmc", 600).draws["x"]
    assert abs(float(x.mean()) - 3) < 0.2 and abs(float(x.std()) - 2) < 0.2


@pytest.mark.parametrize("kind", [MCLMC, HMC])
@pytest.mark.parametrize(
    "settings",
    [{"step_size": 0.0}, {"precondition": "full"}, {"thin": 0}, {"step_size": "large"}],
)
def test_bad_settings(kind, settings):
    with pytest.raises(ArgumentError, match=next(iter(settings))):
        kind(**settings)


def test_bad_settings_of_one():
    for bad in ({"energy_error": 0}, {"decoherence": -1.0}):
        with pytest.raises(ArgumentError, match=next(iter(bad))):
            MCLMC(**bad)
    for bad in ({"target_accept": 1.0}, {"trajectory": 0}, {"max_leapfrog": 0}):
        with pytest.raises(ArgumentError, match=next(iter(bad))):
            HMC(**bad)


def test_kernels_by_name_and_from_their_settings():
    assert make_kernel("hmc") == HMC() and make_kernel("mclmc") == MCLMC()
    for kernel in (MCLMC(energy_error=0.1, decoherence=2.0), HMC(max_leapfrog=7)):
        assert make_kernel(kernel) is kernel
        assert kernel_from(kernel.describe()) == kernel
    for bad in ("nuts", HMC, 3, None):
        with pytest.raises(ArgumentError, match="expected 'mclmc', 'hmc', or one with settings"):
            make_kernel(bad)


@pytest.mark.long
@pytest.mark.parametrize("precondition", ["diagonal", "dense"])
def test_chains_that_are_refused_at_first_move_later(precondition):
    """The first windows see no move where the first steps are far too long."""

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(3), 0.01).to_event(1))

    chains = refine(
        model,
        {"x": torch.zeros(4, 3)},
        num_chains=4,
        num_steps=1000,
        kernel=HMC(precondition=precondition),
        seed=0,
        progress=False,
    )
    deviation = chains.draws["x"].flatten(0, 1).std(0)
    torch.testing.assert_close(deviation, torch.full((3,), 0.01), rtol=0.2, atol=0)
