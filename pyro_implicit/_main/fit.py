"""The fits of the main job; each returns draws of the posterior and the seconds of fitting."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro.infer import ELBO, MCMC, NUTS, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from tqdm.auto import trange

from pyro_implicit.generators.residual import ResidualGenerator
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.inference.posterior_draws import posterior_draws
from pyro_implicit.objectives.linearised import LinearisedELBO

from .data import Split

NUM_DRAWS = 500
BATCH_SIZE = 1024  # rows a step; smaller tables are used whole
Model = Callable[..., Tensor]


@dataclass(frozen=True)
class Fit:
    """Draws {site: (S, *shape)} of one method, with its guide and objective (NUTS has none)."""

    method: str
    draws: dict[str, Tensor]
    seconds: float
    guide: Any = None
    objective: ELBO | None = None


def fit_mean_field(model: Model, split: Split, *, num_steps: int, quiet: bool) -> Fit:
    """Mean-field Gaussian variational inference by Pyro itself, for comparison."""
    guide = AutoNormal(model, init_scale=0.01)
    objective = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    return _fit("mean-field VI", model, guide, objective, split, num_steps, 1e-2, quiet)


def fit_implicit(model: Model, split: Split, *, start: Fit, num_steps: int, quiet: bool) -> Fit:
    """
    The linearised implicit guide, started as the Gaussian of a mean-field fit.

    So it needs few steps, and none to find the scale of each weight; from a start at random it is
    behind mean-field until some ten thousand. The seconds include those of the start.
    """
    guide = HyperNetworkGuide(model, generator=ResidualGenerator, init_from=start.guide)
    objective = LinearisedELBO(
        num_particles=4, vectorize_particles=True, max_plate_nesting=1, num_entropy_particles=1
    )
    fit = _fit("linearised implicit", model, guide, objective, split, num_steps, 3e-3, quiet)
    return replace(fit, seconds=start.seconds + fit.seconds)


def fit_nuts(model: Model, split: Split, *, num_samples: int, quiet: bool) -> Fit:
    """Hamiltonian Monte Carlo: one chain with as many warm-up steps as draws."""
    start = time.perf_counter()
    mcmc = MCMC(
        NUTS(model, max_tree_depth=7),
        num_samples=num_samples,
        warmup_steps=num_samples,
        disable_progbar=quiet,
    )
    mcmc.run(split.x_train, split.y_train)
    return Fit("NUTS", mcmc.get_samples(), time.perf_counter() - start)


def _fit(
    method: str,
    model: Any,  # Pyro's annotation asks for a module, its code for any callable
    guide: Any,
    objective: ELBO,
    split: Split,
    num_steps: int,
    learning_rate: float,
    quiet: bool,
) -> Fit:
    """Adam with a cosine learning rate on the module ``objective(model, guide)``."""
    start = time.perf_counter()
    loss_module = objective(model, guide)
    loss_module(*_batch(split))  # makes the parameters
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    with trange(num_steps, desc=method, disable=quiet) as steps:
        for step in steps:
            optimizer.zero_grad()
            loss = loss_module(*_batch(split))
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                steps.set_postfix(loss=f"{loss.item():.1f}", refresh=False)
    seconds = time.perf_counter() - start
    draws = posterior_draws(guide, NUM_DRAWS, split.x_train)
    return Fit(method, draws, seconds, guide, objective)


def _batch(split: Split) -> tuple[Tensor, Tensor]:
    """All rows of a small table, a random minibatch of a large one."""
    if len(split.x_train) <= BATCH_SIZE:
        return split.x_train, split.y_train
    rows = torch.randint(len(split.x_train), (BATCH_SIZE,))
    return split.x_train[rows], split.y_train[rows]


def fit_all(
    model: Model, split: Split, *, seed: int, num_steps: int, nuts_samples: int, quiet: bool
) -> list[Fit]:
    """All methods, each from the same seed, so that adding NUTS changes none of the others."""
    steps: Any = {"num_steps": num_steps, "quiet": quiet}
    pyro.set_rng_seed(seed)
    mean_field = fit_mean_field(model, split, **steps)
    pyro.set_rng_seed(seed)
    fits = [mean_field, fit_implicit(model, split, start=mean_field, **steps)]
    if nuts_samples:
        pyro.set_rng_seed(seed)
        fits.append(fit_nuts(model, split, num_samples=nuts_samples, quiet=quiet))
    return fits
