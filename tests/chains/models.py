"""Models of this folder's tests."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

ROWS = 12
X = torch.linspace(-1.0, 1.0, ROWS)
NOISE = torch.tensor([0.1, -1.2, 0.8, 0.3, -0.4, 1.5, -0.9, 0.2, 0.6, -0.7, 1.1, -1.6])
Y = 0.5 + 2.0 * X + 0.3 * NOISE


def line(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 3.0).to_event(1))
    sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        mean = pyro.deterministic("mean", w[..., 0] + w[..., 1] * x, event_dim=0)
        return pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def gaussian(covariance: Tensor) -> Callable[[], None]:
    root = torch.linalg.cholesky(covariance)

    def model() -> None:
        pyro.sample("x", dist.MultivariateNormal(root.new_zeros(len(root)), scale_tril=root))

    return model


def banana() -> None:
    """``a`` is normal with deviation 2; ``b`` given ``a`` is about ``a ** 2 / 4``."""
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    pyro.sample("b", dist.Normal(a**2 / 4, 1.0))


def two_modes() -> None:
    """Normals of deviation 1 at -2 and at 2, in the first of two dimensions."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1).mask(False))
    mixture = torch.logaddexp(-0.5 * (x[0] - 2.0) ** 2, -0.5 * (x[0] + 2.0) ** 2)
    pyro.factor("density", mixture - 0.5 * x[1] ** 2)


def funnel() -> None:
    """The deviation of three latents is ``exp(v / 2)``."""
    v = pyro.sample("v", dist.Normal(0.0, 1.0))
    with pyro.plate("three", 3):
        pyro.sample("x", dist.Normal(0.0, torch.exp(v / 2)))


def local(y: Tensor) -> None:
    scale = pyro.sample("scale", dist.Gamma(4.0, 4.0))
    with pyro.plate("rows", len(y)):
        mean = pyro.sample("mean", dist.Normal(0.0, scale))
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
