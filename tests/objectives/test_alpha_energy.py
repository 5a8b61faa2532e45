"""AlphaEnergy against the ELBO, the predictive density and the closed form for Gaussians."""

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
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoHierarchicalNormalMessenger, AutoNormal, AutoNormalMessenger
from torch import Tensor

from pyro_implicit import AlphaEnergy, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError

DATA = torch.tensor([0.3, -0.4, 1.1, 0.8], dtype=torch.float64)
NOISE = 0.7


def model(y: Tensor = DATA) -> None:
    loc = pyro.sample("loc", dist.Normal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc, NOISE), obs=y)


def fixed(mean: float = 0.2, scale: float = 0.5) -> Callable[..., Any]:
    def guide(y: Tensor = DATA) -> None:
        pyro.sample("loc", dist.Normal(y.new_tensor(mean), scale))

    return guide


def energy_in_closed_form(alpha: float, mean: float, scale: float) -> float:
    """For Gaussian likelihood and guide; the limit 0 is the expected log-likelihood."""
    kl = dist.kl.kl_divergence(dist.Normal(mean, scale), dist.Normal(0.0, 1.0)).item()
    if alpha == 0:
        log_p = dist.Normal(mean, NOISE).log_prob(DATA) - 0.5 * (scale / NOISE) ** 2
        return log_p.sum().item() - kl
    # N(y; f, s^2)^alpha is a Gaussian of variance s^2 / alpha times a constant
    total = NOISE**2 / alpha + scale**2
    constant = 0.5 * (1 - alpha) * math.log(2 * math.pi * NOISE**2) - 0.5 * math.log(alpha)
    log_mean = dist.Normal(mean, math.sqrt(total)).log_prob(DATA) + constant
    return (log_mean / alpha).sum().item() - kl


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(alpha=st.sampled_from([0.0, 0.1, 0.5, 1.0]), scale=st.floats(0.1, 0.8))
def test_it_is_the_closed_form(alpha: float, scale: float) -> None:
    pyro.set_rng_seed(0)
    objective = AlphaEnergy(400_000, alpha=alpha, vectorize_particles=True)
    value = -objective.loss(model, fixed(scale=scale))
    assert value == pytest.approx(energy_in_closed_form(alpha, 0.2, scale), abs=0.02)


@pytest.mark.parametrize("vectorised", [True, False])
def test_alpha_0_is_the_elbo(vectorised: bool) -> None:
    settings: dict[str, Any] = {"vectorize_particles": vectorised, "max_plate_nesting": 1}
    losses = []
    for objective in (AlphaEnergy(8, alpha=0.0, **settings), Trace_ELBO(8, **settings)):
        pyro.set_rng_seed(0)
        losses.append(objective.loss(model, fixed()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_alpha_1_is_the_per_datum_form_of_an_implicit_guide() -> None:
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model).setup()
    losses = []
    for objective in (AlphaEnergy(8, alpha=1.0), LinearisedELBO(8, likelihood="per_datum")):
        pyro.set_rng_seed(1)
        losses.append(objective.loss(model, guide))
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_looped_and_vectorised_particles_agree(mixed: Any) -> None:
    """On the same draws; the likelihood's sites differ in plates, scales and masks."""
    draws, values = mixed.draws(7), []
    for nesting in (None, 1):
        objective = AlphaEnergy(7, vectorize_particles=nesting is not None, max_plate_nesting=1)
        values.append(objective.loss(mixed.model, mixed.given(draws, nesting)(mixed.guide)))
    assert values[0] == pytest.approx(values[1], rel=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_its_gradient_is_that_of_the_closed_form(alpha: float) -> None:
    pyro.set_rng_seed(0)
    point = torch.tensor([0.2, 0.5], dtype=torch.float64, requires_grad=True)
    objective = AlphaEnergy(400_000, alpha=alpha, vectorize_particles=True)

    def guide() -> None:
        pyro.sample("loc", dist.Normal(*point))

    (found,) = torch.autograd.grad(-objective.differentiable_loss(model, guide), point)

    def slope(mean: float, scale: float) -> float:
        ends = [energy_in_closed_form(alpha, 0.2 + s * mean, 0.5 + s * scale) for s in (1, -1)]
        return (ends[0] - ends[1]) / 2e-4

    expected = torch.tensor([slope(1e-4, 0.0), slope(0.0, 1e-4)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03)


@pytest.mark.slow
def test_svi_trains_an_ordinary_guide_to_the_optimum() -> None:
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    guide = AutoNormal(model)
    objective = AlphaEnergy(64, alpha=0.5, vectorize_particles=True)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.05 ** (1 / 400)})
    svi = SVI(model, guide, optimiser, objective)
    for _ in range(400):
        svi.step()
    grid = [
        (energy_in_closed_form(0.5, mean, scale), mean, scale)
        for mean in torch.linspace(0.2, 0.5, 31).tolist()
        for scale in torch.linspace(0.2, 0.6, 41).tolist()
    ]
    _, mean, scale = max(grid)
    assert guide.median()["loc"].item() == pytest.approx(mean, abs=0.03)
    assert guide.scales.loc.item() == pytest.approx(scale, abs=0.04)


@pytest.mark.parametrize("kind", [AutoNormalMessenger, AutoHierarchicalNormalMessenger])
@pytest.mark.parametrize("vectorised", [True, False])
def test_a_guide_that_runs_the_model_itself_is_taken_without_its_data(
    kind: Any, vectorised: bool
) -> None:
    """Its trace has what the model observes, a factor among them."""

    def seen(x: Tensor, y: Tensor | None = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        pyro.factor("belief", -slope.square())
        with pyro.plate("data", len(x)):
            level = pyro.sample("level", dist.Normal(slope, 1.0))
            pyro.sample("y", dist.Normal(level * x, 1.0), obs=y)

    x = torch.arange(3.0)
    guide, values = kind(seen, init_scale=0.3), []
    for objective in (
        Trace_ELBO(3, vectorize_particles=vectorised, max_plate_nesting=1),
        AlphaEnergy(3, alpha=0.0, vectorize_particles=vectorised, max_plate_nesting=1),
    ):
        pyro.set_rng_seed(0)
        values.append(objective.loss(seen, guide, x, x))
    assert values[0] == pytest.approx(values[1])


def test_settings_tell_alpha_and_no_bound() -> None:
    assert AlphaEnergy(alpha=0.3).settings["alpha"] == 0.3
    assert "likelihood" not in AlphaEnergy().settings
    assert not AlphaEnergy(alpha=0.0).is_bound  # a linearised entropy
    assert not AlphaEnergy(alpha=0.5).is_bound
    assert "alpha=0.5" in repr(AlphaEnergy())


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, True])
def test_bad_alpha(alpha: Any) -> None:
    with pytest.raises(ArgumentError, match="alpha="):
        AlphaEnergy(alpha=alpha)


def test_a_likelihood_is_refused() -> None:
    with pytest.raises(ArgumentError, match="alpha takes its place"):
        AlphaEnergy(likelihood="per_datum")


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("alpha", [1e-300, 1e-30, 1e-12, 1e-8, 1e-6])
def test_a_small_alpha_is_near_the_elbo_also_in_single_precision(
    alpha: float, vectorised: bool
) -> None:
    data = DATA.float() * 20  # log-likelihoods that differ a lot between draws
    guide = fixed()
    values = []
    for small in (0.0, alpha):
        pyro.set_rng_seed(0)
        objective = AlphaEnergy(5, alpha=small, vectorize_particles=vectorised)
        values.append(objective.loss(model, guide, data))
    assert values[1] == pytest.approx(values[0], rel=1e-3)
