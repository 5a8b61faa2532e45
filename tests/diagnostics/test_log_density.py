"""log_density: closed forms in the constrained space, and what is refused."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.diagnostics import log_density
from pyro_implicit.exceptions import (
    ArgumentError,
    DensityError,
    GuideError,
    ShapeError,
    SiteError,
    StateError,
)
from tests.diagnostics.known import affine_guide, normal_model

A = [[0.5, 0.0], [0.3, 0.8]]
B = [1.0, -2.0]


def two_sites():
    pyro.sample("loc", dist.Normal(0.0, 1.0))
    pyro.sample("scale", dist.LogNormal(0.0, 1.0))


@pytest.mark.long
@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_a_gaussian_guide(sigma):
    guide = affine_guide(normal_model, A, B, scale=sigma)
    draws = guide.sample(100)
    found = log_density(guide, draws, num_inner=2000)
    matrix = torch.tensor(A)
    covariance = matrix @ matrix.T + sigma**2 * torch.eye(2)
    exact = dist.MultivariateNormal(torch.tensor(B), covariance).log_prob(draws["w"])
    error = (found.value - exact).abs()
    assert (error <= 5 * found.standard_error + 1e-4).all()
    assert error.mean() < 0.02
    assert found.standard_error.any() == bool(sigma)


@pytest.mark.parametrize("factorized", [False, True])
def test_densities_are_those_of_constrained_values(factorized):
    """One site on the positive axis; jointly, and with an independent generator for each."""
    if factorized:

        def generator(output_dim):
            return torch.nn.Linear(1, output_dim)

        guide = HyperNetworkGuide(
            two_sites, generator=generator, noise_dim=1, scale=0.0, factorized=True
        ).setup()
        layers = [sampler.generator.module for sampler in guide.samplers]
        matrix = torch.diag(torch.stack([layer.weight[0, 0] for layer in layers])).detach()
        shift = torch.stack([layer.bias[0] for layer in layers]).detach()
        shift = shift + torch.cat([sampler.preconditioner.loc for sampler in guide.samplers])
    else:
        guide = affine_guide(two_sites, A, B)
        matrix, shift = torch.tensor(A), torch.tensor(B)
    draws = guide.sample(50)
    u = torch.stack([draws["loc"], draws["scale"].log()], -1)
    exact = dist.MultivariateNormal(shift, matrix @ matrix.T).log_prob(u) - u[:, 1]
    torch.testing.assert_close(log_density(guide, draws).value.float(), exact, atol=1e-3, rtol=0)


@pytest.mark.long
def test_a_folded_guide_has_the_density_of_its_draws():
    guide = affine_guide(normal_model, A, B, folded=True)
    draws = guide.sample(200)
    found = log_density(guide, draws, num_starts=16).value
    matrix = torch.tensor(A)
    exact = dist.MultivariateNormal(torch.tensor(B), matrix @ matrix.T).log_prob(draws["w"])
    assert (found - exact).abs().median() < 1e-3
    assert ((found - exact).abs() < 1e-2).float().mean() > 0.9  # near the crease it is not smooth


@pytest.mark.long
def test_more_noise_than_latents():
    matrix = [[0.5, 0.2, 0.1], [0.0, 0.4, 0.3]]
    guide = affine_guide(normal_model, matrix, B, scale=0.2)
    draws = guide.sample(20)
    covariance = torch.tensor(matrix) @ torch.tensor(matrix).T + 0.04 * torch.eye(2)
    exact = dist.MultivariateNormal(torch.tensor(B), covariance).log_prob(draws["w"])
    found = log_density(guide, draws, num_inner=4000).value.float()
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0)


def test_the_guide_and_the_random_state_of_its_parameters_stay():
    guide = affine_guide(normal_model, A, B)
    before = {name: value.clone() for name, value in guide.named_parameters()}
    log_density(guide, guide.sample(3))
    assert all(value.dtype == torch.float32 for value in before.values())
    assert all(torch.equal(before[name], value) for name, value in guide.named_parameters())
    assert all(value.requires_grad for value in guide.parameters())


def test_other_guides_are_refused():
    with pytest.raises(GuideError, match="log_density needs an implicit guide.*found AutoNormal"):
        log_density(AutoNormal(normal_model), {})
    with pytest.raises(StateError, match="not built yet"):
        log_density(HyperNetworkGuide(normal_model), {})


def test_densities_that_nobody_can_estimate():
    surface = affine_guide(normal_model, [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], B)
    with pytest.raises(DensityError, match="3 noises for 2 latents without output noise"):
        log_density(surface, surface.sample(2))

    def wide():
        pyro.sample("w", dist.Normal(torch.zeros(101), 1.0).to_event(1))

    guide = HyperNetworkGuide(wide, hidden_dims=(4,)).setup()
    with pytest.raises(DensityError, match="more than 100 is hopeless"):
        log_density(guide, guide.sample(2))


def test_values_are_checked():
    guide = affine_guide(two_sites, A, B)
    draws = guide.sample(4)
    with pytest.raises(SiteError, match=r"values are given for sites \['loc'\]; the guide has"):
        log_density(guide, {"loc": draws["loc"]})
    with pytest.raises(ShapeError, match="values of site 'scale' have shape"):
        log_density(guide, {**draws, "scale": draws["scale"][:2]})
    with pytest.raises(ShapeError, match="values of site 'loc' have shape"):
        log_density(guide, {**draws, "loc": torch.tensor(1.0)})
    with pytest.raises(ShapeError, match="with the same n >= 1 for every site"):
        log_density(guide, {name: value[:0] for name, value in draws.items()})
    with pytest.raises(SiteError, match="values of site 'scale' are outside of its support"):
        log_density(guide, {**draws, "scale": -draws["scale"]})


@pytest.mark.parametrize(
    "options", [{"num_inner": 0}, {"num_inner": 1.5}, {"num_starts": True}, {"num_starts": 65}]
)
def test_numbers_are_checked(options):
    guide = affine_guide(normal_model, A, B)
    with pytest.raises(ArgumentError, match="expected an integer >= 1"):
        log_density(guide, guide.sample(2), **options)


@pytest.mark.long
def test_no_noise_leads_there():
    class Positive(torch.nn.Module):
        def forward(self, z):
            return z.exp()

    def model():
        pyro.sample("w", dist.Normal(0.0, 1.0))

    guide = HyperNetworkGuide(
        model,
        generator=Positive(),
        noise_dim=1,
        scale=0.0,
        init_loc_fn=lambda site: torch.tensor(0.0),
    ).setup()
    values = torch.tensor([-1.0, 2.0])
    found = log_density(guide, {"w": values}).value
    assert found[0] == -math.inf
    exact = dist.LogNormal(0.0, 1.0).log_prob(values[1])
    assert found[1].item() == pytest.approx(exact.item(), abs=1e-4)
