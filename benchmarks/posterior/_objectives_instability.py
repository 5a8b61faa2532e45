"""The KL term of a small Bayesian network, step by step, as several ratios estimate it."""

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

__all__ = ["ESTIMATES", "track"]

NUM_ROWS, NUM_HIDDEN, NOISE = 40, 20, 0.1
NUM_PARTICLES, LR = 16, 3e-3


def _linear(m: int) -> nn.Module:
    return nn.Linear(m, 1)


ESTIMATES: dict[str, Callable[..., Any]] = {
    "logistic-regression critic": partial(AdversarialELBO, critic=_linear, contrast="prior"),
    "default critic": partial(AdversarialELBO, contrast="prior"),
    "kernel published": partial(KernelDensityRatioELBO, published=True),
    "kernel adaptive": KernelDensityRatioELBO,
}


def build_model() -> Callable[[], None]:
    """61 weights with standard normal priors, and 40 points of a curve."""
    own = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, NUM_ROWS)[:, None]
    y = torch.sin(2 * x[:, 0]) + NOISE * torch.randn(NUM_ROWS, generator=own)
    layers = nn.Sequential(nn.Linear(1, NUM_HIDDEN), nn.Tanh(), nn.Linear(NUM_HIDDEN, 1))
    net = BayesianModule(layers, dist.Normal(0.0, 1.0, validate_args=False))

    def model() -> None:
        mean = net(x).squeeze(-1)
        with pyro.plate("data", NUM_ROWS):
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    return model


def track(name: str, num_steps: int, quiet: bool) -> list[float]:
    """Trains, and returns the estimate of ``KL(q || p)`` at every step."""
    model = build_model()
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
    return curve
