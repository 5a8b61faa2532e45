"""One latent whose posterior and guide are Gaussian: gradients of objectives by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_implicit import ImplicitDistribution
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.generators import Generator
from tests.objectives.replayed import replayed

#: mean and deviation of the posterior
MEAN, DEVIATION = 0.4, 0.7


def model() -> None:
    """Its evidence is 1."""
    pyro.sample("x", dist.Normal(torch.tensor([MEAN]).double(), DEVIATION).to_event(1))


class Line(Generator):
    """``loc + deviation * z``."""

    full_rank = True

    def __init__(self, loc: float, deviation: float) -> None:
        super().__init__((1,), 1)
        self.loc = nn.Parameter(torch.tensor(loc).double())
        self.deviation = nn.Parameter(torch.tensor(deviation).double())

    def forward(self, z: Tensor) -> Tensor:
        return self.loc + self.deviation * z


@dataclass
class GaussianCase:
    """
    A guide ``N(loc, deviation^2 + scale^2)`` of that model.

    :param float scale: of the output noise; learned if it is not 0.
    """

    loc: float = -0.2
    deviation: float = 0.8
    scale: float = 0.3

    def __post_init__(self) -> None:
        self.generator = Line(self.loc, self.deviation)
        self.log_scale = torch.tensor(math.log(self.scale or 1.0)).double().requires_grad_()
        self.variance = self.deviation**2 + self.scale**2
        self.grid = torch.linspace(-8, 8, 1601).double() * math.sqrt(self.variance) + self.loc

    def guide(self) -> None:
        pyro.module("generator", self.generator)
        scale = self.log_scale.exp() if self.scale else 0.0
        sample_implicit("x", ImplicitDistribution(self.generator, scale=scale))

    @property
    def parameters(self) -> list[Tensor]:
        own = list(self.generator.parameters())
        return [*own, self.log_scale] if self.scale else own

    def gradients(self, objective: Any, count: int) -> tuple[Tensor, Tensor]:
        """Losses ``(count,)`` and gradients ``(count, parameters)`` of so many evaluations."""

        def once() -> tuple[Tensor, ...]:
            loss = objective.differentiable_loss(model, self.guide)
            return loss.detach(), torch.stack(torch.autograd.grad(loss, self.parameters))

        again = replayed(once)
        losses, found = zip(*(again() for _ in range(count)), strict=True)
        return torch.stack(losses), torch.stack(found)

    # ---- by quadrature

    @property
    def weights(self) -> Tensor:
        """Of the guide's law at the points of the grid."""
        log_q = -0.5 * (self.grid - self.loc) ** 2 / self.variance
        return log_q.softmax(0)

    def difference(self, x: Tensor) -> Tensor:
        """The score of the guide less that of the posterior."""
        return -(x - self.loc) / self.variance + (x - MEAN) / DEVIATION**2

    def smoothed(self, kernel: Callable[[Tensor], Tensor], normalised: bool = False) -> Tensor:
        """The mean of the difference under a kernel at the points of the grid."""
        matrix = kernel(self.grid[:, None] - self.grid)
        if normalised:
            return matrix @ self.difference(self.grid) / matrix.sum(-1)
        return matrix @ (self.weights * self.difference(self.grid))

    def path(self, field: Tensor) -> Tensor:
        """The gradient that a field at the grid's points gives the parameters."""
        centred = (self.grid - self.loc) / self.variance
        along_z, along_noise = self.deviation * centred, self.scale**2 * centred
        fields = [torch.ones_like(field), along_z, along_noise]
        return torch.stack([(self.weights * field * f).sum() for f in fields])[
            : len(self.parameters)
        ]


def gaussian(width: float) -> Callable[[Tensor], Tensor]:
    return lambda r: (-0.5 * (r / width) ** 2).exp()


def imq(width: float) -> Callable[[Tensor], Tensor]:
    return lambda r: (1 + (r / width) ** 2).rsqrt()


KERNELS: dict[str, Callable[[float], Callable[[Tensor], Tensor]]] = {
    "gaussian": gaussian,
    "imq": imq,
}


def close(found: Tensor, expected: Tensor, errors: float = 5.0, bias: float = 0.0) -> None:
    """The mean of replicates is the expected value, by so many of its standard errors."""
    error = found.std(0) / len(found) ** 0.5
    off = (found.mean(0) - expected).abs()
    assert (off < errors * error + bias).all(), (found.mean(0), expected, error)
