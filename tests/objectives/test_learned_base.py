"""Noise with learned parameters: its entropy has the right gradient, or the guide is refused."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.distributions.diagonal_mixture import DiagonalMixture
from pyro_implicit.exceptions import SiteError
from pyro_implicit.generators.module import ModuleGenerator
from pyro_implicit.objectives.critic import Critic
from pyro_implicit.objectives.implicit_site import ImplicitSite

pytestmark = pytest.mark.usefixtures("double")
LOG_2PI_E = 1 + math.log(2 * math.pi)
M = 2
MATRIX = torch.tensor([[1.2, 0.4], [-0.3, 0.8]], dtype=torch.float64)
TARGET = torch.tensor([1.0, -0.5], dtype=torch.float64)


def _generator(matrix: Tensor = MATRIX) -> ModuleGenerator:
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
    layer.weight.data.copy_(matrix)
    return ModuleGenerator(layer, (matrix.shape[1],), matrix.shape[0])


def model() -> None:
    pyro.sample("w", dist.Normal(TARGET, 1.5).to_event(1))


def _exact(loc: Tensor, log_scale: Tensor, sigma: float) -> Tensor:
    """The evidence bound of a linear generator with that normal base."""
    root = MATRIX * log_scale.exp()
    covariance = root @ root.mT + sigma**2 * torch.eye(M)
    mean = MATRIX @ loc
    prior = -0.5 * ((mean - TARGET).square().sum() + covariance.trace()) / 1.5**2
    entropy = 0.5 * torch.logdet(covariance) + 0.5 * M * LOG_2PI_E
    return prior - M * (0.5 * math.log(2 * math.pi) + math.log(1.5)) + entropy


def _quadratic(m: int) -> nn.Module:
    return Critic(m, hidden_dims=(8,))


OBJECTIVES: dict[str, tuple[Any, float, float]] = {  # objective, sigma, tolerance of the gradient
    "linearised": (LinearisedELBO, 0.0, 0.1),
    "alpha": (lambda n, **o: AlphaEnergy(n, alpha=0.0, **o), 0.0, 0.1),
    "lanczos": (lambda n, **o: LanczosELBO(n, num_steps=2, num_probes=2, **o), 0.0, 0.1),
    "kernel": (lambda n, **o: KernelDensityRatioELBO(n, num_samples=400, **o), 0.0, 0.15),
    "adversarial": (lambda n, **o: AdversarialELBO(n, num_samples=400, **o), 0.0, 0.15),
    "kernel, noisy": (lambda n, **o: KernelDensityRatioELBO(n, num_samples=400, **o), 0.4, 0.15),
    "semi-implicit": (lambda n, **o: SemiImplicitELBO(n, num_inner=1000, **o), 0.6, 0.15),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_with_respect_to_a_normal_base_are_those_of_the_closed_form(name: str) -> None:
    make, sigma, tolerance = OBJECTIVES[name]
    generator = _generator().requires_grad_(False)
    loc = torch.tensor([0.2, -0.4], requires_grad=True)
    log_scale = torch.tensor([-0.3, 0.2], requires_grad=True)

    def guide() -> None:
        base = dist.Normal(loc, log_scale.exp()).to_event(1)
        sample_implicit("w", ImplicitDistribution(generator, base_dist=base, scale=sigma))

    objective = make(4000, vectorize_particles=True)
    found = torch.autograd.grad(objective.differentiable_loss(model, guide), [loc, log_scale])
    expected = torch.autograd.grad(-_exact(loc, log_scale, sigma), [loc, log_scale])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


def test_fresh_draws_move_with_the_base() -> None:
    scale = torch.tensor(1.3, requires_grad=True)
    base = dist.Normal(torch.zeros(M), scale.expand(M)).to_event(1)
    fn = ImplicitDistribution(_generator(), torch.zeros(5, M), base_dist=base)
    fresh = ImplicitSite("w", fn, torch.zeros(5, M), ("w",)).fresh(7)
    assert fresh.shape == (7, M)
    (slope,) = torch.autograd.grad(fresh.sum(), scale)
    torch.testing.assert_close(slope, fresh.sum().detach() / scale.detach())  # linear in it


@pytest.mark.parametrize("what", ["loc", "log_scale"])
def test_the_semi_implicit_bound_has_the_gradient_of_its_own_value(what: str) -> None:
    parameters = {"loc": torch.zeros(M), "log_scale": torch.zeros(M)}
    parameters[what].requires_grad_()

    def guide() -> None:
        base = dist.Normal(parameters["loc"], parameters["log_scale"].exp()).to_event(1)
        sample_implicit("w", ImplicitDistribution(_generator(), base_dist=base, scale=0.5))

    def value(shift: float) -> Tensor:
        with torch.no_grad():
            parameters[what].fill_(shift)
        pyro.set_rng_seed(0)
        objective = SemiImplicitELBO(6, vectorize_particles=True, num_inner=7)
        return objective.terms(model, guide)["entropy"]

    slope = (value(1e-5) - value(-1e-5)).item() / 2e-5
    gradient = torch.autograd.grad(value(0.0), parameters[what])[0].sum().item()
    assert slope == pytest.approx(gradient, abs=1e-6)


# ---- without rsample


ENTROPIES = [
    LinearisedELBO,
    LanczosELBO,
    SingularValueELBO,
    SemiImplicitELBO,
    KernelDensityRatioELBO,
    AdversarialELBO,
    AlphaEnergy,
]


def _mixture_guide(locs: Tensor, kind: str = "torch") -> Any:
    generator = _generator()

    def guide() -> None:
        if kind == "torch":
            weights = dist.Categorical(torch.ones(2))
            base: Any = dist.MixtureSameFamily(weights, dist.Normal(locs, 0.3).to_event(1))
        else:
            base = DiagonalMixture(locs, torch.full_like(locs, 0.3), torch.zeros(2))
        sample_implicit("w", ImplicitDistribution(generator, base_dist=base, scale=0.1))

    return guide


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("kind", [*ENTROPIES, PosteriorPredictiveLoss])
def test_a_learned_mixture_is_refused_by_every_objective(kind: Any, vectorised: bool) -> None:
    guide = _mixture_guide(torch.tensor([[-1.0, 0.0], [1.0, 0.0]], requires_grad=True))
    message = (
        "implicit site 'w' has noise from a MixtureSameFamily with learned parameters and no "
        r"rsample: .* Keep the parameters of base_dist fixed .*dist.Normal\(loc, scale\)"
    )
    with pytest.raises(SiteError, match=message):
        kind(3, vectorize_particles=vectorised).loss_and_grads(model, guide)


@pytest.mark.parametrize("kind", ENTROPIES)
def test_a_fixed_mixture_is_served(kind: Any) -> None:
    guide = _mixture_guide(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of values not certified
        assert math.isfinite(kind(3).loss_and_grads(model, guide))


def test_weighted_draws_serve_a_learned_mixture_where_there_are_any() -> None:
    locs = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    guide = _mixture_guide(locs, "ours")
    with pytest.raises(SiteError, match="noise from a DiagonalMixture with learned parameters"):
        LinearisedELBO(3).loss_and_grads(model, guide)
    objective = PosteriorPredictiveLoss(3, prior_weight=1.0, form="expected")
    objective.loss_and_grads(model, guide)
    assert locs.grad is not None and locs.grad.abs().sum() > 0


def test_a_prior_with_a_learned_mixture_is_refused() -> None:
    locs = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    mixture = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Normal(locs, 0.3).to_event(1)
    )
    prior = ImplicitDistribution(_generator(), base_dist=mixture, scale=0.2)
    with pytest.raises(SiteError, match="the prior has noise from a MixtureSameFamily with learn"):
        SemiImplicitELBO().implicit_prior(prior, torch.zeros(3, M))


# ---- a base with a law for each row


def test_rows_with_bases_of_their_own_are_told_apart() -> None:
    locs = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, -9.0]])
    base = dist.Normal(locs, 1.0).to_event(1)
    fn = ImplicitDistribution(_generator(), base_dist=base, scale=0.7)
    noise = base.sample((400,))
    given = fn.given(noise)
    site = ImplicitSite("w", given, given.rsample(), ("w",))
    covariance = MATRIX @ MATRIX.mT + 0.49 * torch.eye(M)
    exact = 0.5 * torch.logdet(covariance).item() + 0.5 * M * LOG_2PI_E
    found = SemiImplicitELBO(num_inner=500).estimate(site).mean(0)
    torch.testing.assert_close(found, torch.full((3,), exact), rtol=0, atol=0.25)
