"""Draws of a model's prior: their law, their coordinates, and what is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, ImplicitDistribution, KernelDensityRatioELBO
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import GuideError, SiteError
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.draw_particle import draw_particle
from pyro_implicit.objectives.particles.particle import Particle, Reads
from pyro_implicit.objectives.particles.prior_draws import PriorDraws

INF = float("inf")
COUNT = 20_000
NESTINGS = pytest.mark.parametrize("nesting", [None, 1], ids=["looped", "vectorised"])


def site_of(model: Any, guide: Any = None, *args: Any) -> ImplicitSite:
    """The one implicit site of the default guide."""
    guide = guide or HyperNetworkGuide(model, hidden_dims=(3,))
    (site,) = draw_particle(model, guide, args, {}, INF).implicit.values()
    return site


def draw(model: Any, nesting: int | None, count: int | None = None, *args: Any) -> Tensor:
    count = count or (2000 if nesting is None else COUNT)
    found = PriorDraws(model, args, {}, nesting).draw(site_of(model, None, *args), count)
    assert len(found) == count and not found.requires_grad
    return found


def assert_moments(found: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Within 5 standard errors; those of a covariance as for a Gaussian."""
    n, variance = len(found), covariance.diagonal()
    assert ((found.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    spread = ((variance * variance[:, None] + covariance**2) / n).sqrt()
    assert ((found.mT.cov() - covariance).abs() < 5 * spread + 1e-6).all()


# ---- the law of the draws


def hierarchical() -> None:
    top = pyro.sample("top", dist.Normal(1.0, 2.0))
    with pyro.plate("rows", 3):
        low = pyro.sample("low", dist.Normal(top, 0.5))
        pyro.sample("y", dist.Normal(low, 1.0), obs=torch.zeros(3))


@pytest.mark.long
@NESTINGS
def test_hierarchical_priors_have_their_exact_moments(nesting: int | None) -> None:
    covariance = 4 * torch.ones(4, 4) + 0.25 * torch.tensor([0.0, 1, 1, 1]).diag()
    assert_moments(draw(hierarchical, nesting), torch.ones(4), covariance)


@pytest.mark.long
@NESTINGS
def test_draws_are_in_the_guides_unconstrained_coordinates(nesting: int | None) -> None:
    def model() -> None:
        pyro.sample(
            "a", dist.LogNormal(torch.tensor([0.5, -1.0]), torch.tensor([0.3, 2.0])).to_event(1)
        )
        pyro.sample("b", dist.Uniform(-1.0, 3.0))  # logistic

    mean = torch.tensor([0.5, -1.0, 0.0])
    found = draw(model, nesting)
    assert_moments(found, mean, torch.tensor([0.09, 4.0, math.pi**2 / 3]).diag())


@NESTINGS
def test_a_simplex_is_mapped_back_by_stick_breaking(nesting: int | None) -> None:
    alpha = torch.tensor([2.0, 3.0, 4.0])
    found = draw(lambda: pyro.sample("p", dist.Dirichlet(alpha)), nesting)
    assert found.shape[1] == 2
    # each stick is a Beta(a_k, sum of the later); its logit is shifted by log of their number
    rest = torch.tensor([7.0, 4.0])
    mean = torch.digamma(alpha[:2]) - torch.digamma(rest) + torch.tensor([2.0, 1.0]).log()
    variance = torch.polygamma(1, alpha[:2]) + torch.polygamma(1, rest)
    error = 5 * (variance / len(found)).sqrt()
    assert ((found.mean(0) - mean).abs() < error).all()
    torch.testing.assert_close(
        found.var(0), variance, rtol=0.2 if nesting is None else 0.06, atol=0
    )


@pytest.mark.long
@pytest.mark.parametrize("nesting", [None, 2])
def test_looped_and_vectorised_draws_agree_with_plates_of_any_depth(nesting: int | None) -> None:
    def model() -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.1))
        with pyro.plate("a", 2, dim=-2):
            row = pyro.sample("row", dist.Normal(torch.tensor([[0.0], [5.0]]), 1.0))
            with pyro.plate("b", 3, dim=-1):
                loc = row + torch.tensor([0.0, 10.0, 20.0])
                pyro.sample("cell", dist.Normal(loc, scale))

    found = draw(model, nesting)
    cells = torch.tensor([0.0, 10, 20, 5, 15, 25])
    mean = torch.cat([torch.tensor([0.0, 0.0, 5.0]), cells])
    assert ((found.mean(0) - mean).abs() < 0.2).all()
    row, cell = found[:, 1:3], found[:, 3:].reshape(-1, 2, 3)
    rest = cell - row[..., None] - torch.tensor([0.0, 10.0, 20.0])
    expected = math.exp(0.1**2)  # root mean square of the LogNormal
    assert rest.std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.long
def test_a_hand_written_site_needs_no_pack_if_it_is_the_latent_itself() -> None:
    covariance = torch.tensor([[2.0, 1.0], [1.0, 3.0]])

    def model() -> None:
        pyro.sample("w", dist.MultivariateNormal(torch.ones(2), covariance))

    generator = MLPGenerator(2, 2, skip=True)
    fn = ImplicitDistribution(generator)
    for nesting, count in ((None, 1000), (0, COUNT)):
        batch = () if nesting is None else (4,)
        noise = torch.randn(*batch, 2)
        site = ImplicitSite("w", fn.given(noise), torch.zeros(*batch, 2), ("w",))
        found = PriorDraws(model, (), {}, nesting).draw(site, count)
        assert found.shape == (count, 2)
        assert_moments(found, torch.ones(2), covariance)


def test_arguments_reach_the_model() -> None:
    def model(loc: Tensor, *, scale: float) -> None:
        pyro.sample("w", dist.Normal(loc, scale))

    site = site_of(lambda: model(torch.tensor(0.0), scale=1.0))
    found = PriorDraws(model, (torch.tensor(7.0),), {"scale": 0.01}, 0).draw(site, 50)
    assert found.mean().item() == pytest.approx(7, abs=0.02)


# ---- what is left alone


@NESTINGS
def test_the_model_runs_only_until_the_last_latent_is_drawn(nesting: int | None) -> None:
    ran = {"before": 0, "after": 0}

    def model() -> None:
        ran["before"] += 1
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 2):
            z = pyro.sample("z", dist.Normal(w, 1.0))
        ran["after"] += 1
        pyro.sample("y", dist.Normal(z.sum(), 1.0), obs=torch.tensor(0.0))

    site = site_of(model)
    ran.update(before=0, after=0)
    PriorDraws(model, (), {}, nesting).draw(site, 5)
    assert ran == {"before": 5 if nesting is None else 1, "after": 0}


@NESTINGS
def test_pyros_stack_gradients_and_surrounding_handlers_are_as_before(nesting: int | None) -> None:
    site = site_of(hierarchical)
    with poutine.trace() as tracer, poutine.scale(scale=3.0):
        with torch.enable_grad():
            PriorDraws(hierarchical, (), {}, nesting).draw(site, 4)
            assert torch.is_grad_enabled()
    assert not tracer.trace.nodes
    assert not pyro.poutine.runtime._PYRO_STACK
    trace = poutine.trace(hierarchical).get_trace()
    assert set(trace.nodes) >= {"top", "low", "y"}
    assert trace.nodes["low"]["value"].shape == (3,)


@NESTINGS
def test_an_error_of_the_model_is_its_own_and_leaves_the_stack(nesting: int | None) -> None:
    site = site_of(hierarchical)

    def broken() -> None:
        pyro.sample("top", dist.Normal(0.0, 1.0))
        raise KeyError("a mistake of the user's")

    with pytest.raises(KeyError, match="mistake"):
        PriorDraws(broken, (), {}, nesting).draw(site, 3)
    assert not pyro.poutine.runtime._PYRO_STACK


# ---- refused draws


@NESTINGS
@pytest.mark.parametrize("wrap", [False, True])
def test_an_improper_prior_is_named(nesting: int | None, wrap: bool) -> None:
    def model() -> None:
        pyro.sample("proper", dist.Normal(0.0, 1.0))
        fn: Any = dist.ImproperUniform(constraints.real, (), () if wrap else (2,))
        fn = fn.expand([2]).to_event(1) if wrap else fn
        pyro.sample("flat", fn)

    with pytest.raises(SiteError, match="prior of latent site 'flat' is improper"):
        draw(model, nesting, 3)


def test_a_latent_of_another_size_is_refused() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 2, skip=True))

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("v", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    for latents in (("w",), ("w", "v"), ("v",)):
        site = ImplicitSite("w", fn.given(torch.randn(4, 2)), torch.zeros(4, 2), latents)
        with pytest.raises(SiteError, match=r"'w' has draws of shape \(5, 2\), prior draws.*pack="):
            PriorDraws(model, (), {}, 0).draw(site, 5)


def test_some_rows_of_a_plate_are_refused_by_the_packing() -> None:
    def model(rows: Tensor | None = None) -> None:
        with pyro.plate("data", 4, subsample=rows):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    site = site_of(model)
    with pytest.raises(SiteError, match="6 prior draws of site 'z' have 12 entries.*4 for each"):
        PriorDraws(model, (torch.tensor([0, 2]),), {}, 1).draw(site, 6)


# ---- check


def particle_of(model: Any, guide: Any) -> Particle:
    return draw_particle(model, guide, (), {}, INF)


def test_check_accepts_priors_that_only_depend_on_latents_of_the_same_site() -> None:
    PriorDraws(hierarchical, (), {}, None).check(
        particle_of(hierarchical, HyperNetworkGuide(hierarchical))
    )


def independent() -> None:
    pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3):
        pyro.sample("b", dist.LogNormal(0.0, 1.0))


def test_check_accepts_independent_sites_of_a_factorised_guide() -> None:
    guide = HyperNetworkGuide(independent, factorized=True)
    PriorDraws(independent, (), {}, None).check(particle_of(independent, guide))


def test_check_refuses_a_prior_that_depends_on_another_site() -> None:
    guide = HyperNetworkGuide(hierarchical, factorized=True)
    particle, prior = particle_of(hierarchical, guide), PriorDraws(hierarchical, (), {}, None)
    message = "prior of 'low' depends on latents outside of implicit site '.*low_latent'"
    with pytest.raises(GuideError, match=message):
        prior.check(particle)
    with pyro.validation_enabled(False):
        prior.check(particle)  # it runs the model: for validation only


def test_check_refuses_a_prior_whose_structure_depends_on_another_site() -> None:
    def model() -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        fn = dist.Normal(torch.zeros(2, 3), 1.0)
        pyro.sample("b", fn.to_event(1 if a > 0 else 2))

    site = ImplicitSite("b", ImplicitDistribution(MLPGenerator(2, 6)), torch.zeros(6), ("b",))
    prior = PriorDraws(model, (), {}, None)
    with pytest.raises(GuideError, match="prior of 'b' depends on latents outside"):
        for _ in range(20):  # the first time that both signs of a come together
            prior._check_independent(site)


def test_a_prior_that_is_implicit_has_no_density_to_be_checked() -> None:
    generator = MLPGenerator(2, 2, skip=True)

    def model() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("w", ImplicitDistribution(generator))

    guide = HyperNetworkGuide(model, factorized=True)
    particle = draw_particle(model, guide, (), {}, INF, Reads(prior=False))
    PriorDraws(model, (), {}, None).check(particle)


WEIGHTS: dict[str, Callable[[], Any]] = {
    "scale": lambda: poutine.scale(scale=2.0),
    "mask": lambda: poutine.mask(mask=torch.tensor([True, False, True])),
    "no": lambda: poutine.mask(mask=False),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("both", [False, True])
def test_check_refuses_weights_that_differ_between_model_and_guide(name: str, both: bool) -> None:
    def model() -> None:
        with pyro.plate("rows", 3), WEIGHTS[name]():
            pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))

    generator = ResidualGenerator(1, 2)

    def guide() -> None:
        with pyro.plate("rows", 3), WEIGHTS[name]() if both else poutine.scale(scale=1.0):
            sample_implicit("z", ImplicitDistribution(generator))

    particle, prior = particle_of(model, guide), PriorDraws(model, (), {}, None)
    if both and name != "mask":
        prior.check(particle)
        return
    message = "scale or mask that differs" if both else "'z' has weight .* in the model"
    with pytest.raises(SiteError, match=message):
        prior.check(particle)


def test_the_objective_checks_before_it_trains() -> None:
    objective = KernelDensityRatioELBO(contrast="prior", num_samples=5)
    guide = HyperNetworkGuide(hierarchical, factorized=True)
    with pytest.raises(GuideError, match="factorized=False"):
        objective.loss(hierarchical, guide)
    scaled = poutine.scale(hierarchical, scale=0.5)
    with pytest.raises(SiteError, match=r"'top' has weight 0\.5 in the model.* and 1 in the guide"):
        objective.loss(scaled, HyperNetworkGuide(hierarchical).setup())
    both = poutine.scale(HyperNetworkGuide(hierarchical).setup(), scale=0.5)
    assert math.isfinite(objective.loss(scaled, both))
