"""What the benchmarks of functions of one input share: the network of the paper, and dropout."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

__all__ = ["DROPOUT", "Prediction", "dropout", "network"]

#: the last two are the noise and the rate at which all of them start
DROPOUT: dict[str, Any] = {"dropout": 0.01, "num_draws": 1000, "noise": 0.3, "lr": 0.01}
Prediction = tuple[Tensor, Tensor]  # mean and standard deviation of an observation


def network() -> nn.Module:
    """The architecture of the paper."""
    return nn.Sequential(
        nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 1)
    )


def dropout(x: Tensor, y: Tensor, new: Tensor, steps: Any) -> Prediction:
    """Dropout at training and at test, and a learned noise."""
    layers: list[nn.Module] = []
    for layer in network():  # type: ignore[attr-defined]
        layers += [layer, nn.Dropout(DROPOUT["dropout"])] if isinstance(layer, nn.Tanh) else [layer]
    net = nn.Sequential(*layers)
    log_noise = torch.tensor(math.log(DROPOUT["noise"]), requires_grad=True)
    optimiser = torch.optim.Adam([*net.parameters(), log_noise], lr=DROPOUT["lr"])
    for _ in steps:
        optimiser.zero_grad()
        (-dist.Normal(net(x)[:, 0], log_noise.exp()).log_prob(y)).mean().backward()
        optimiser.step()
    with torch.no_grad():
        f = torch.stack([net(new)[:, 0] for _ in range(DROPOUT["num_draws"])])
        return f.mean(0), (f.var(0) + log_noise.exp() ** 2).sqrt()
