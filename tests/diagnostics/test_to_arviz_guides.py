"""to_arviz and posterior_draws with the guides, networks and objectives of this package."""

from __future__ import annotations

import json

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal

from pyro_implicit.diagnostics.to_arviz import to_arviz
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.infer.draws import posterior_draws
from pyro_implicit.infer.linearised import LinearisedELBO

X = torch.linspace(-1, 1, 15)[:, None]
Y = torch.sin(3 * X[:, 0])


def model(x, y=None):
    scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    with pyro.plate("inputs", 1):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("data", 15, subsample_size=len(x)):
        mean = w[..., 0] + w[..., 1] * x[:, 0]
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def mixed_guide():
    guide = AutoGuideList(model)
    guide.append(HyperNetworkGuide(poutine.block(model, expose=["w"])))
    guide.append(AutoNormal(poutine.block(model, expose=["scale"])))
    return guide


GUIDES = {
    "joint": lambda: HyperNetworkGuide(model),
    "factorized": lambda: HyperNetworkGuide(model, factorized=True),
    "mixed": mixed_guide,
}


@pytest.mark.parametrize("name", GUIDES)
def test_draws_are_latents_only(name):
    guide = GUIDES[name]()
    guide(X, Y)
    draws = posterior_draws(guide, 6, X, Y)
    assert {k: tuple(v.shape) for k, v in draws.items()} == {"scale": (6,), "w": (6, 1, 2)}
    assert (draws["scale"] > 0).all() and not any(v.requires_grad for v in draws.values())


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("name", GUIDES)
def test_export(name, batch_size):
    data = to_arviz(model, GUIDES[name](), X, Y, num_samples=5, batch_size=batch_size)
    posterior = data["posterior"]
    assert set(posterior.data_vars) == {"scale", "w"}
    assert posterior["w"].dims == ("chain", "draw", "inputs", "w_dim_0")
    w, scale = posterior["w"].values[:, :, 0], posterior["scale"].values[..., None]
    mean = w[..., :1] + w[..., 1:] * X[:, 0].numpy()
    expected = torch.distributions.Normal(torch.tensor(mean), torch.tensor(scale)).log_prob(Y)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values, expected, rtol=1e-4, atol=1e-5)


def test_a_fitted_guide_and_its_objective():
    guide = HyperNetworkGuide(model)
    objective = LinearisedELBO(num_particles=4, kl_weight=0.5)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), objective)
    for _ in range(3):
        svi.step(X, Y)
    attrs = to_arviz(model, guide, X, Y, num_samples=3, objective=objective).attrs
    assert (attrs["guide"], attrs["objective"]) == ("HyperNetworkGuide", "LinearisedELBO")
    assert (attrs["kl_weight"], attrs["prior_weight"]) == (0.5, 1.0)
    assert json.loads(attrs["objective_settings"])["num_particles"] == 4


def test_a_loaded_guide_without_its_model():
    guide = HyperNetworkGuide(model)
    guide(X, Y)
    fresh = HyperNetworkGuide(model)
    fresh.load_state_dict(guide.state_dict())
    pyro.set_rng_seed(1)
    expected = posterior_draws(guide, 3)
    pyro.set_rng_seed(1)
    found = posterior_draws(fresh, 3)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert to_arviz(model, fresh, X, Y, num_samples=2)["posterior"]["w"].shape == (1, 2, 1, 2)
