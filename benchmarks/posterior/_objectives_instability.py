"""The KL term of small Bayesian networks, step by step, as several ratios estimate it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from tqdm.auto import trange

from pyro_implicit import (
    AdversarialELBO,
    BayesianModule,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
)

__all__ = ["ESTIMATES", "NETWORKS", "track"]

NUM_ROWS, NOISE = 40, 0.1
NUM_PARTICLES, LR = 16, 3e-3
NUM_DRAWS = 1000
#: weights -> units of the hidden layers
NETWORKS = {61: (20,), 673: (24, 24)}


def _linear(m: int) -> nn.Module:
    return nn.Linear(m, 1)


ESTIMATES: dict[str, Callable[..., Any]] = {
    "logistic-regression critic": partial(AdversarialELBO, critic=_linear, contrast="prior"),
    "default critic": partial(AdversarialELBO, contrast="prior"),
    "kernel published": partial(KernelDensityRatioELBO, published=True),
    "kernel adaptive": KernelDensityRatioELBO,
}


def build_model(hidden: tuple[int, ...]) -> Callable[[], None]:
    """Weights with standard normal priors, and 40 points of a curve."""
    own = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, NUM_ROWS)[:, None]
    y = torch.sin(2 * x[:, 0]) + NOISE * torch.randn(NUM_ROWS, generator=own)
    layers: list[nn.Module] = []
    for before, after in zip((1, *hidden[:-1]), hidden, strict=True):
        layers += [nn.Linear(before, after), nn.Tanh()]
    layers.append(nn.Linear(hidden[-1], 1))
    prior = dist.Normal(0.0, 1.0, validate_args=False)
    net = BayesianModule(nn.Sequential(*layers), prior)

    def model() -> None:
        mean = net(x).squeeze(-1)
        with pyro.plate("data", NUM_ROWS):
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    return model


def track(name: str, weights: int, num_steps: int, quiet: bool) -> tuple[list[float], float]:
    """
    Trains.

    :returns: the estimate of ``KL(q || p)`` at every step; and what the means and variances of the
        weights force in the end, were they independent Gaussians.
    """
    model = build_model(NETWORKS[weights])
    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = ESTIMATES[name](NUM_PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    adam = torch.optim.Adam(guide.parameters(), lr=LR)
    curve = []
    for _ in trange(num_steps, desc=name, disable=quiet, leave=False):
        terms: dict[str, Tensor] = objective.terms(model, guide)
        adam.zero_grad()
        (-torch.stack(list(terms.values())).sum()).backward()
        adam.step()
        curve.append(-sum(float(v.detach()) for k, v in terms.items() if k != "log_likelihood"))
    return curve, _forced(guide)


@torch.no_grad()
def _forced(guide: HyperNetworkGuide) -> float:
    with pyro.plate("draws", NUM_DRAWS, dim=-1):
        draws = torch.cat([value.flatten(1) for value in guide().values()], 1).double()
    variance = draws.var(0)
    return float((0.5 * (variance + draws.mean(0) ** 2 - 1 - variance.log())).sum())
