"""The gradient along the path: the same in the mean, and none where the guide is the posterior."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import AutoregressiveGenerator
from tests.generators.test_residual import jolted


def bent(y: Any = 0.7) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.LogNormal(mean, 0.5))
    pyro.sample("y", dist.Normal(mean, scale), obs=torch.tensor(y))


def made(model: Any, **options: Any) -> HyperNetworkGuide:
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model, **options).double().setup()
    for sampler in guide.samplers:
        jolted(sampler.generator, 0.1)
    return guide


def gradient(objective: LinearisedELBO, guide: Any, model: Any, *args: Any) -> Tensor:
    guide.zero_grad()
    objective.loss_and_grads(model, guide, *args)
    return torch.cat([one.grad.reshape(-1) for one in guide.parameters()])


@pytest.mark.parametrize("factorized", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_it_is_that_of_a_density_that_stands_still(factorized: bool, weight: float) -> None:
    guide = made(bent, init_from=None, factorized=factorized)
    objective = LinearisedELBO(7, vectorize_particles=True, kl_weight=weight)
    objective.loss(bent, guide)
    torch.manual_seed(1)
    found = gradient(objective, guide, bent)
    still = copy.deepcopy(guide).requires_grad_(False)
    torch.manual_seed(1)
    with pyro.plate("particles", 7, dim=-1):
        drawn = poutine.trace(guide).get_trace()
        trace = poutine.trace(poutine.replay(bent, trace=drawn)).get_trace()
    trace.compute_log_prob()
    density = {name: site["log_prob"] for name, site in trace.nodes.items() if "log_prob" in site}
    values: Any = {name: trace.nodes[name]["value"] for name in ("mean", "scale")}
    divergence = still.log_density(values) - density["mean"] - density["scale"]
    loss = (weight * divergence - density["y"]).mean()
    expected = torch.autograd.grad(loss, list(guide.parameters()))
    flat = torch.cat([one.reshape(-1) for one in expected])
    torch.testing.assert_close(found, flat, rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("way", [True, False, "vmap"])
def test_there_is_none_where_the_guide_is_the_posterior(way: Any) -> None:
    """Of a Gaussian posterior, at each draw; without the path each draw has one."""

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", 4):
            f = (w * torch.eye(4, 3)).sum(-1)
            pyro.sample("y", dist.Normal(f, 0.5), obs=torch.ones(4))

    torch.set_default_dtype(torch.float64)
    try:
        affine = AutoregressiveGenerator(3, num_steps=0)
        weights = affine._unpacked(affine.weights.detach())
        weights["blocks.*.weight_out"].zero_()
        weights["blocks.*.bias_out"].zero_()
        weights["maps.*.log_diagonal"][-1] = 0.0
        guide = HyperNetworkGuide(model, generator=affine, init_from="laplace").setup()
        options: Any = {"vectorize_particles": way, "watch_folds": 0}
        norms = [
            float(gradient(LinearisedELBO(3, path_gradient=path, **options), guide, model).norm())
            for path in (True, False)
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    assert norms[0] < 1e-5 * norms[1] and norms[1] > 0.1


def test_values_are_what_they_were_and_other_steps_ask_for_none() -> None:
    guide, losses = made(bent, init_from=None), []
    for path in (False, True):
        objective = LinearisedELBO(5, vectorize_particles=True, path_gradient=path)
        objective.loss(bent, guide)
        torch.manual_seed(1)
        losses.append(objective.loss_and_grads(bent, guide))
        torch.manual_seed(1)
        losses.append(objective.loss(bent, guide))
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-9)


def test_guides_without_a_score_have_the_gradient_of_the_loss() -> None:
    guide = made(bent, init_from=None, hidden_dims=(5,), noise_dim=2, scale=0.1)
    found = []
    for path in (False, True):
        torch.manual_seed(1)
        objective = LinearisedELBO(5, vectorize_particles=True, path_gradient=path)
        found.append(gradient(objective, guide, bent))
    assert torch.equal(*found)


def test_what_is_no_flag_is_refused_and_it_is_told() -> None:
    with pytest.raises(ArgumentError, match="path_gradient='yes'; expected True or False"):
        LinearisedELBO(path_gradient="yes")  # type: ignore[arg-type]
    assert LinearisedELBO(path_gradient=False).settings["path_gradient"] is False
