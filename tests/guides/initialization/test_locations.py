"""The places where a guide may start."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import nn

from pyro_implicit import BayesianModule
from pyro_implicit.guides.initialization.locations import locations, prior_draws
from pyro_implicit.guides.latent_site import LatentSite


def _pairs(model: Any) -> list[Any]:
    trace = poutine.trace(model).get_trace()
    nodes = [node for _, node in trace.iter_stochastic_nodes()]
    return [(LatentSite.from_trace(node, allow_subsample=False), node) for node in nodes]


def test_a_wrapped_module_s_values_are_one() -> None:
    layer = nn.Linear(2, 3)
    net = BayesianModule(layer, prior=dist.Normal(0.0, 1.0))

    def model() -> None:
        pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        net(torch.zeros(1, 2))

    own = torch.full((10,), 0.5)
    found = locations(_pairs(model), own)
    assert set(found) == {
        "the default",
        "the module's values",
        "fan-in",
        "prior medians",
        "uniform 1",
    }
    expected = torch.cat([torch.tensor([0.5]), layer.weight.flatten(), layer.bias])
    assert torch.equal(found["the module's values"], expected)
    assert not found["the module's values"].requires_grad


def test_values_that_the_prior_excludes_are_left_out() -> None:
    net = BayesianModule(nn.Linear(2, 3, bias=False), prior=dist.HalfNormal(1.0))
    net.module.weight.fill_(-1.0)
    own = torch.full((6,), 0.5)
    assert "the module's values" not in locations(_pairs(lambda: net(torch.zeros(1, 2))), own)


def test_draws_of_the_prior_are_its_own() -> None:
    """In the unconstrained space, and given what it depends on in the trace."""

    def model():
        scale = pyro.sample("scale", dist.LogNormal(1.0, 0.5))
        pyro.sample("w", dist.Normal(torch.full((3,), 100.0), scale).to_event(1))

    trace = poutine.trace(poutine.condition(model, {"scale": torch.tensor(2.0)})).get_trace()
    sites = [LatentSite.from_trace(trace.nodes[name], False) for name in ("scale", "w")]
    pairs = [(site, trace.nodes[site.name]) for site in sites]
    torch.manual_seed(0)
    drawn = torch.stack(prior_draws(pairs, torch.zeros(4), 2000))
    expected = torch.tensor([[1.0, 100.0, 100.0, 100.0], [0.5, 2.0, 2.0, 2.0]])
    assert torch.allclose(drawn.mean(0), expected[0], atol=0.2)
    assert torch.allclose(drawn.std(0), expected[1], rtol=0.1)


def test_a_site_without_a_density_keeps_its_own() -> None:
    node = {
        "type": "sample",
        "name": "u",
        "fn": dist.ImproperUniform(constraints.real, (), ()),
        "value": torch.tensor(0.0),
        "cond_indep_stack": (),
        "infer": {},
    }
    site = LatentSite.from_trace(node, allow_subsample=False)
    found = locations([(site, node)], torch.tensor([0.25]), num_uniform=2)
    assert set(found) == {"the default", "uniform 1", "uniform 2"}
