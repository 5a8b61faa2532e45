"""
Value and gradients of evidence bounds where all is Gaussian: those of the KL divergence from the
posterior, in closed form. The gradients vanish at the posterior and nowhere else, which is where
training ends: the long runs that show it are under ``slow``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    SemiImplicitELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.generators.base import Generator

pytestmark = pytest.mark.usefixtures("double")

X = torch.tensor([[1.0, 0.9], [0.8, 1.0], [0.3, -0.2]], dtype=torch.float64)
Y = torch.tensor([1.5, 1.2, 0.4], dtype=torch.float64)
EYE = torch.eye(2, dtype=torch.float64)
NOISE, SIGMA = 0.5, 0.2
COVARIANCE = torch.linalg.inv(EYE + X.mT @ X / NOISE**2)
POSTERIOR = dist.MultivariateNormal(COVARIANCE @ X.mT @ Y / NOISE**2, COVARIANCE)


def model() -> None:
    theta = pyro.sample("theta", dist.Normal(X.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("data", 3):
        mean = (theta[..., None, :] * X).sum(-1).reshape(-1, 3)
        pyro.sample("y", dist.Normal(mean, NOISE), obs=Y)


class Affine(Generator):
    """``loc + matrix @ z``; the output noise is the guide's."""

    full_rank = True

    def __init__(self, loc: Tensor, matrix: Tensor) -> None:
        super().__init__((2,), 2)
        self.loc, self.matrix = nn.Parameter(loc.clone()), nn.Parameter(matrix.clone())

    def forward(self, z: Tensor) -> Tensor:
        return self.loc + z @ self.matrix.mT

    def law(self) -> dist.MultivariateNormal:
        """Of the guide's draws."""
        return dist.MultivariateNormal(self.loc, self.matrix @ self.matrix.mT + SIGMA**2 * EYE)


#: with the bias of the value in nats, and that of the gradients in proportion
OBJECTIVES: dict[str, tuple[Callable[..., Any], float, float]] = {
    "linearised": (LinearisedELBO, 0.0, 0.0),
    "lanczos": (partial(LanczosELBO, num_steps=2, num_probes=1), 0.0, 0.0),
    "semi-implicit, prior": (partial(SemiImplicitELBO, num_inner=200), 0.05, 0.05),
    "semi-implicit, gauss-newton": (
        partial(SemiImplicitELBO, num_inner=50, proposal="gauss-newton"),
        0.02,
        0.02,
    ),
    # too high by the price of narrow kernels beside wide ones
    "kernel ratio": (KernelDensityRatioELBO, 0.8, 0.1),
    "adversarial": (partial(AdversarialELBO, num_critic_steps=2), 0.25, 0.1),
}
STARTS = {
    "at the posterior": (POSTERIOR.loc, torch.linalg.cholesky(COVARIANCE - SIGMA**2 * EYE)),
    "elsewhere": (X.new_tensor([-0.5, 0.8]), X.new_tensor([[0.6, 0.0], [0.4, 0.3]])),
}


@pytest.mark.long
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_value_and_gradients_are_those_of_the_divergence(name: str, start: str) -> None:
    generator = Affine(*STARTS[start])
    parameters = [generator.loc, generator.matrix]
    make, value_bias, bias = OBJECTIVES[name]
    objective = make(1000, vectorize_particles=True, max_plate_nesting=1)

    def guide() -> None:
        pyro.module("generator", generator)
        sample_implicit("theta", ImplicitDistribution(generator, scale=SIGMA))

    losses, gradients = [], []
    for _ in range(20):
        loss = objective.differentiable_loss(model, guide)
        losses.append(loss.detach())
        found = torch.autograd.grad(loss, parameters)
        gradients.append(torch.cat([each.flatten() for each in found]))

    evidence = dist.MultivariateNormal(Y.new_zeros(3), X @ X.mT + NOISE**2 * torch.eye(3).to(Y))
    kl = torch.distributions.kl_divergence(generator.law(), POSTERIOR)
    exact = torch.cat([each.flatten() for each in torch.autograd.grad(kl, parameters)])
    values, slopes = torch.stack(losses), torch.stack(gradients)
    error = 5 * values.std() / len(values) ** 0.5
    assert abs(values.mean() - (kl.detach() - evidence.log_prob(Y))) < error + value_bias
    errors = 5 * slopes.std(0) / len(slopes) ** 0.5
    assert (errors < (2.0 if bias >= 0.1 else 1.0)).all()  # elsewhere the gradients are up to 9
    assert ((slopes.mean(0) - exact).abs() < errors + bias * (1 + exact.abs())).all()
