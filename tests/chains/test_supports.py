"""Supports that another latent decides: chains are mapped on one, and would not leave it."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import refine
from pyro_implicit.exceptions import SiteError

Y = torch.linspace(-1.0, 1.0, 12)


def refined(model, *args, num_steps=60, seed=0, **kwargs):
    return refine(
        model, 4, *args, num_steps=num_steps, seed=seed, kernel="hmc", progress=False, **kwargs
    )


def bounded_by(bound):
    def model(y):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        u = pyro.sample("u", dist.Uniform(0.0, bound(z)))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(u, 1.0), obs=y)

    return model


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "bound",
    [
        lambda z: 1 + 4 * torch.relu(z - 1),  # the same at five draws of the prior in six
        lambda z: 1 + torch.relu(z - 6),  # the same at all draws that anybody sees
        lambda z: torch.where(z > 30, z, torch.ones_like(z)),
    ],
)
def test_what_is_computed_from_a_latent_is_followed(bound, seed):
    with pytest.raises(SiteError, match="'u' is computed from latent 'z'"):
        refined(bounded_by(bound), Y, num_steps=0, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_comparison_decides_is_seen_at_draws(seed):
    model = bounded_by(lambda z: 1 + 4 * (z > 0.5).float())
    with pytest.raises(SiteError, match="'u' has the support .* depends on another latent"):
        refined(model, Y, num_steps=0, seed=seed)


@pytest.mark.long
def test_what_a_comparison_decides_is_seen_where_chains_are():
    """The prior is there never, the posterior always."""

    def model(y):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("seen", dist.Normal(z, 0.01), obs=torch.tensor(6.0))
        pyro.sample("u", dist.Uniform(0.0, 1 + 4 * (z > 5).float()))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(SiteError, match="'u' has the support"):
        refined(model, Y)


@pytest.mark.long
def test_chains_that_arrive_there_later_are_told():
    def moved(y):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("u", dist.Uniform(0.0, 1 + 4 * (z > 5).float()))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    start = {"z": torch.zeros(4), "u": torch.full((4,), 0.5)}
    refine(moved, start, Y + 9, num_steps=0, seed=0, progress=False)
    with pytest.raises(SiteError, match="'u' has the support"):
        refine(moved, start, Y + 9, num_steps=400, seed=0, kernel="hmc", progress=False)


@pytest.mark.long
@pytest.mark.parametrize(
    "bound", [lambda z: 3.0, lambda z: Y.max() + 2, lambda z: pyro.param("top", torch.tensor(3.0))]
)
def test_bounds_that_are_no_latents_are_taken(bound):
    chains = refined(bounded_by(bound), Y, num_steps=0)
    assert set(chains.draws) == {"z", "u"}


@pytest.mark.long
def test_bounded_latents_under_hyperpriors_are_taken():
    def model(y):
        scale = pyro.sample("scale", dist.HalfNormal(2.0))
        with pyro.plate("groups", 3):
            sd = pyro.sample("sd", dist.HalfNormal(scale))
        share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal((share * sd).sum(), 1.0), obs=y)

    refined(model, Y, num_steps=0)
