"""Objectives that are exact for few latents have the gradient of the exact one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, LanczosELBO, LinearisedELBO, SingularValueELBO
from pyro_implicit.generators import (
    AutoregressiveGenerator,
    BijectiveGenerator,
    MLPGenerator,
    ResidualGenerator,
)


def _model() -> None:
    pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))


def _gradients(objective: Any, guide: Any) -> Tensor:
    pyro.set_rng_seed(0)
    loss = objective.differentiable_loss(_model, guide)
    found = torch.autograd.grad(loss, list(guide.parameters()), materialize_grads=True)
    return torch.cat([grad.flatten() for grad in found])


GUIDES: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "autoregressive": lambda: AutoregressiveGenerator(3),
    "bijective": lambda: BijectiveGenerator(3, 4),
    "residual": lambda: ResidualGenerator(3, 4),
    "perceptron": lambda: MLPGenerator(3, 3, (5,)),
    "normalised": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.LayerNorm(6), nn.ELU(), nn.Linear(6, 3)
    ),
}


@pytest.mark.parametrize("kind", GUIDES)
def test_lanczos_to_the_end_has_the_exact_gradient(kind: str) -> None:
    """By as many steps and probes as there are latents."""
    pyro.set_rng_seed(0)
    extra = {"noise_dim": 3, "scale": 0.0} if kind == "normalised" else {}
    guide = HyperNetworkGuide(_model, generator=GUIDES[kind](), init_from=None, **extra)
    guide.setup().double()
    options = {"vectorize_particles": True, "max_plate_nesting": 0}
    exact = _gradients(LinearisedELBO(20, path_gradient=False, **options), guide)
    lanczos = _gradients(LanczosELBO(20, num_steps=3, num_probes=3, **options), guide)
    torch.testing.assert_close(lanczos, exact, rtol=1e-6, atol=1e-6)
    assert exact.abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:implicit site")
@pytest.mark.parametrize("objective", [LanczosELBO, SingularValueELBO])
def test_the_entropy_is_trained_by_products_too(objective: Any) -> None:
    """Of the default guide, whose products are made when they are asked for."""
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(_in_double, init_from=None).setup().double()
    svi = pyro.infer.SVI(
        _in_double, guide, pyro.optim.Adam({"lr": 0.01}), objective(20, vectorize_particles=True)
    )
    for _ in range(300):
        svi.step()
    deviation = guide.sample(2000)["x"].std(0)
    assert (deviation > 0.7).all() and (deviation < 1.3).all()


def test_probes_have_the_type_of_the_guide() -> None:
    """Whatever the default type."""
    guide = HyperNetworkGuide(_model, init_from=None).setup()
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        loss = LanczosELBO(4, num_probes=2).loss(_in_single, guide)
    finally:
        torch.set_default_dtype(before)
    assert math.isfinite(loss)


def _in_single() -> None:
    pyro.sample("x", dist.Normal(torch.zeros(3, dtype=torch.float32), 1.0).to_event(1))


def _in_double() -> None:
    pyro.sample("x", dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0).to_event(1))
