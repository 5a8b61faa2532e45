"""A conjugate regression line, and data of it."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

torch.manual_seed(0)
X = torch.randn(40, 3)
Y = X @ torch.tensor([1.0, -0.5, 0.3]) + 0.7 + 0.5 * torch.randn(40)
DESIGN = torch.cat([X, torch.ones(40, 1)], -1)


def line(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((w * x).sum(-1) + b, 0.5), obs=y)
