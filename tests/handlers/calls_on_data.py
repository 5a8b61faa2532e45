"""Calls of every function that runs a model on data, for a line of two latents or any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
    refine,
    to_arviz,
)
from pyro_implicit.diagnostics import khat, stein_discrepancy

X = torch.ones(4, 2)


def line(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    mean = (x * w[..., None, :]).sum(-1)
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def calls_of(model: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """
    By name a function of a guide and data, which calls one with the model.

    :param model: a Pyro model.
    """
    new = HyperNetworkGuide(model)
    return {
        "refine": lambda g, *data: refine(
            model, 1, *data, num_chains=1, num_steps=20, progress=False
        ),
        "khat": lambda g, *data: khat(model, g, *data, num_samples=100),
        "stein": lambda g, *data: stein_discrepancy(model, g, *data, num_samples=20),
        "arviz": lambda g, *data: to_arviz(model, g, *data, num_samples=2),
        "density": lambda g, *data: log_predictive_density(model, g, *data, num_samples=2),
        "evaluate": lambda g, *data: evaluate(model, g, *data, num_samples=2),
        "validation": lambda g, *data: fit(
            model, g, X, X[:, 0], validation=data, num_steps=2, progress=False
        ),
        "fit": lambda g, *data: fit(model, new, *data, num_steps=2, progress=False),
    }


CALLS = calls_of(line)
