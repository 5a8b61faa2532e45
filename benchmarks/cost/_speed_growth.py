"""What grows with a size: a conditional guide's step, an exact entropy, a guide of many latents."""

# Shape legend: S draws, N rows, k inputs of the context, m latents.
from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.cost._speed_timing import Job, Row, Settings, medians, row, rows_of
from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    LanczosELBO,
    LinearisedELBO,
)
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.generators import ResidualGenerator

__all__ = ["conditional", "entropy", "large", "many"]

ENTROPY_MS = 30.0
NUM_LOCAL = 4


def conditional(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of each size of the context, relative to the first."""
    sizes = settings["context_sizes"]
    with fixed_seed(seed):
        jobs = {_inputs(k): _conditional_step(settings["context_rows"], k) for k in sizes}
        ms = medians(jobs, rounds)
    bases = {_inputs(k): (_inputs(sizes[0]), 1.5) for k in sizes[1:]}
    yield from rows_of("step, conditional guide", ms, bases)


def _inputs(size: int) -> str:
    return f"{size} inputs"


def _conditional_step(num_rows: int, size: int) -> Job:
    """A step of four latents for each row, of a model that does nothing with the context."""
    x, y = torch.randn(num_rows, size), torch.randn(num_rows)

    def model(x: Tensor, y: Tensor) -> None:
        with pyro.plate("data", num_rows):
            local = pyro.sample("local", dist.Normal(x.new_zeros(NUM_LOCAL), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(local.sum(-1), 0.5), obs=y)

    guide = ConditionalHyperNetworkGuide(model)
    guide._pyro_name = f"context_{size}"  # their parameters are side by side in Pyro's store
    objective = LinearisedELBO(2, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), objective)
    return lambda: svi.step(x, y)


def entropy(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """The row of a generator with as many noises as outputs: value and gradient, four draws."""
    size = settings["entropy_latents"]
    with fixed_seed(seed):
        generator, z = ResidualGenerator(size), torch.randn(4, size)

        def job() -> None:
            generator.zero_grad()
            generator.half_log_det(z).sum().backward()

        ms = medians({"ResidualGenerator": job}, rounds)
    what = f"exact entropy, d = m = {size}, 4 draws"
    yield row(what, "ResidualGenerator", ms["ResidualGenerator"], goal=ENTROPY_MS)


def large(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of two objectives for the default guide of many latents, two looped draws."""
    size = settings["many_latents"]
    with fixed_seed(seed), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PerformanceHint)
        guide = HyperNetworkGuide(many, init_from=None).setup(size)
        ms = medians({name: _step(guide, size, kind) for name, kind in KINDS.items()}, rounds)
    hinted = any(issubclass(one.category, PerformanceHint) for one in told)
    notes = dict.fromkeys(KINDS, "a hint names what is cheaper" if hinted else "")
    yield from rows_of(f"step, default guide, {size} latents", ms, {}, notes)


KINDS: dict[str, Any] = {"LinearisedELBO": LinearisedELBO, "LanczosELBO": LanczosELBO}


def _step(guide: Any, size: int, kind: Any) -> Job:
    svi = SVI(many, guide, pyro.optim.Adam({"lr": 1e-3}), kind(2))
    return lambda: svi.step(size)


def many(size: int) -> None:
    """A standard normal of many numbers whose mean was observed."""
    values = pyro.sample("values", dist.Normal(torch.zeros(size), 1.0).to_event(1))
    pyro.sample("mean", dist.Normal(values.mean(-1), 0.1), obs=torch.tensor(0.5))
