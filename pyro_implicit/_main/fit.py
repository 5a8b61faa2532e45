"""The fits of the main job: guides, and the seconds that fitting them took."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import ELBO, MCMC, NUTS, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit.chains.refine import refine
from pyro_implicit.chains.result import Chains
from pyro_implicit.generators.residual import ResidualGenerator
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.training.fitting.fit import fit

from .data import Split

BATCH_SIZE = 1024  # rows a step; smaller tables are used whole
METHOD_NAMES = {
    "mean-field": "mean-field VI",
    "implicit": "linearised implicit",
    "refine": "chains from modes",
    "nuts": "NUTS",
}
NUM_CHAINS = 16
MAX_R_HAT = 1.1  # of predictions of chains that agree
MAX_ROWS_FOR_R_HAT = 2000  # the first test rows, which are in random order
Model = Callable[..., Tensor]


@dataclass(frozen=True)
class Fit:
    """A guide of one method, its objective (chains have none), and what is to be told of it."""

    method: str
    guide: Any
    seconds: float
    objective: ELBO | None = None
    notes: list[str] = field(default_factory=list)


class Chain:
    """The draws of a Markov chain as a guide, one after the other."""

    def __init__(self, draws: dict[str, Tensor]) -> None:
        self.draws, self.place = draws, 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Samples the next draw."""
        for name, value in self.sample(1).items():
            pyro.sample(name, dist.Delta(value[0], event_dim=value.dim() - 1))

    def __len__(self) -> int:
        return len(next(iter(self.draws.values())))

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """The next draws, from the first one on after the last."""
        chosen = torch.arange(self.place, self.place + num_samples) % len(self)
        self.place = (self.place + num_samples) % len(self)
        return {name: value[chosen] for name, value in self.draws.items()}


def most_draws(guide: Any, num_samples: int) -> int:
    """So many draws as asked for; no more than a chain, or several, have."""
    if isinstance(guide, Chains):
        return min(num_samples, guide.num_chains * guide.num_draws)
    return min(num_samples, len(guide)) if isinstance(guide, Chain) else num_samples


class Batches:
    """Some rows of a large table after the other, in another order each time."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch, without the rows that do not make a whole batch."""
        order = torch.randperm(len(self.split.x_train))
        for rows in order.split(BATCH_SIZE):
            if len(rows) == BATCH_SIZE:
                yield self.split.x_train[rows], self.split.y_train[rows]


def fit_mean_field(model: Model, split: Split, **options: Any) -> Fit:
    """Mean-field Gaussian variational inference by Pyro itself, for comparison."""
    guide = AutoNormal(model, init_scale=0.01)
    objective = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    return _fit("mean-field", model, guide, objective, split, **options)


def fit_implicit(model: Model, split: Split, *, start: Fit, **options: Any) -> Fit:
    """
    The linearised implicit guide, started as the Gaussian of a mean-field fit.

    So it needs few steps, and none to find the scale of each weight. The seconds include those of
    the start.
    """
    guide = HyperNetworkGuide(model, generator=ResidualGenerator, init_from=start.guide)
    objective = LinearisedELBO(
        num_particles=4, vectorize_particles=True, max_plate_nesting=1, num_entropy_particles=1
    )
    found = _fit("implicit", model, guide, objective, split, **options)
    return replace(found, seconds=start.seconds + found.seconds)


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
    return Fit(METHOD_NAMES["nuts"], Chain(mcmc.get_samples()), time.perf_counter() - start)


def fit_chains(model: Model, split: Split, *, num_steps: int, seed: int, quiet: bool) -> Fit:
    """
    Chains of microcanonical Langevin dynamics, each from a mode of its own.

    :raises KeyboardInterrupt: if they were interrupted, as the other methods do.
    """
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        chains = refine(
            model,
            NUM_CHAINS,
            split.x_train,
            split.y_train,
            num_chains=NUM_CHAINS,
            num_steps=num_steps,
            progress=not quiet,
            seed=seed,
        )
    if chains.interrupted:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - start
    notes = [str(o.message).rstrip(".") for o in caught if issubclass(o.category, UserWarning)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # told in words of the command line
        r_hats = chains.predictive_r_hat(split.x_test[:MAX_ROWS_FOR_R_HAT])["y"]
    r_hat = float(r_hats.nan_to_num(1.0).max())  # NaN of what all draws predict alike
    if not r_hat <= MAX_R_HAT:
        notes.append(
            f"r-hat of predictions is up to {r_hat:.2f}: the chains do not agree yet, and are an "
            "ensemble rather than draws of the posterior; a larger --refine brings them nearer"
        )
    method = METHOD_NAMES["refine"]
    return Fit(method, chains, seconds, notes=[f"{method}: {text}" for text in notes])


def _fit(
    method: str,
    model: Any,
    guide: Any,
    objective: ELBO,
    split: Split,
    *,
    num_steps: int,
    seed: int,
    quiet: bool,
) -> Fit:
    """One call of :func:`~pyro_implicit.fit`."""
    large = len(split.x_train) > BATCH_SIZE
    result = fit(
        model,
        guide,
        *(() if large else (split.x_train, split.y_train)),
        batches=Batches(split) if large else None,
        objective=objective,
        num_steps=num_steps,
        progress=not quiet,
        seed=seed,
    )
    if result.reason == "interrupted":
        raise KeyboardInterrupt  # fit keeps what was reached, which nobody asked to see
    notes = [f"{METHOD_NAMES[method]}: {warning}" for warning in result.warnings]
    return Fit(METHOD_NAMES[method], guide, result.seconds, objective, notes)


def fit_all(
    model: Model,
    split: Split,
    *,
    methods: Sequence[str],
    seed: int,
    num_steps: int,
    nuts_samples: int,
    chain_steps: int,
    quiet: bool,
) -> list[Fit]:
    """The methods asked for, each from the same seed, so that none changes another."""
    options: Any = {"num_steps": num_steps, "seed": seed, "quiet": quiet}
    fits = []
    if {"mean-field", "implicit"} & set(methods):
        pyro.set_rng_seed(seed)
        mean_field = fit_mean_field(model, split, **options)
        fits += [mean_field] * ("mean-field" in methods)
        if "implicit" in methods:
            pyro.set_rng_seed(seed)
            fits.append(fit_implicit(model, split, start=mean_field, **options))
    if "refine" in methods:
        fits.append(fit_chains(model, split, num_steps=chain_steps, seed=seed, quiet=quiet))
    if "nuts" in methods:
        pyro.set_rng_seed(seed)
        fits.append(fit_nuts(model, split, num_samples=nuts_samples, quiet=quiet))
    return fits
