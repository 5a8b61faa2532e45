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
from pyro_implicit.guides.initialization.locations import locations
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
