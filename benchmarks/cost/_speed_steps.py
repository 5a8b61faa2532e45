"""A training step of small models: the default guide, Pyro's guides, and a loop by hand."""

# Shape legend: S draws, m latents.
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.cost._speed_bare import bare_step
from benchmarks.cost._speed_models import TARGETS, Target
from benchmarks.cost._speed_recorded import fit_step, recorded_step, svi_step
from benchmarks.cost._speed_timing import Job, Row, Settings, medians, rows_of
from pyro_implicit import HyperNetworkGuide, LinearisedELBO

__all__ = ["floor_loss", "steps"]

RATE = 1e-3
FLOOR, NORMAL = "floor, by hand", "AutoNormal"
EAGER, RECORDED = "implicit, eager", "implicit, recorded"
RECORDED_SVI = "implicit, recorded, in SVI"
ALONG_PATH, ALONG_PATH_SVI = "implicit, recorded, along the path", "the same, in SVI"
BARE = "implicit, bare traces"
BASES: dict[str, tuple[str, float | None]] = {
    NORMAL: (FLOOR, None),
    "AutoMultivariateNormal": (FLOOR, None),
    BARE: (NORMAL, None),
    EAGER: (NORMAL, 1.15),
    RECORDED: (FLOOR, 1.2),
    RECORDED_SVI: (NORMAL, 1.15),
    ALONG_PATH: (FLOOR, None),
    ALONG_PATH_SVI: (NORMAL, 1.15),
}
#: what takes the step, and whether the entropy's gradient is along the path, as the floor's is not
WAYS: dict[str, tuple[Any, bool]] = {
    RECORDED: (fit_step, False),
    RECORDED_SVI: (svi_step, False),
    ALONG_PATH: (fit_step, True),
    ALONG_PATH_SVI: (svi_step, True),
}


def steps(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of each target: milliseconds of a step of ``num_draws`` vectorised draws."""
    for name in settings["targets"]:
        with fixed_seed(seed):
            target, num_draws = TARGETS[name](), settings["num_draws"]
            guide = HyperNetworkGuide(target.model, init_from=settings["init_from"])
            guide.setup(*target.args)
            made = {
                method: recorded_step(
                    partial(_objective, num_draws, path_gradient=along),
                    target.model,
                    guide,
                    target.args,
                    RATE,
                    settings["tries"],
                    step_of=step_of,
                )
                for method, (step_of, along) in WAYS.items()
            }
            jobs = {
                FLOOR: floor_step(target, guide, num_draws),
                NORMAL: _pyro_step(target, AutoNormal, num_draws),
                "AutoMultivariateNormal": _pyro_step(target, AutoMultivariateNormal, num_draws),
                BARE: bare_step(target, guide, num_draws, RATE),
                EAGER: svi_step(_objective(num_draws), target.model, guide, target.args, RATE),
                **{method: job for method, (job, _) in made.items()},
            }
            ms = medians(jobs, rounds, settings["warm_up"])
        notes = {method: note for method, (_, note) in made.items()}
        yield from rows_of(f"step, {name}", ms, BASES, notes)


def floor_loss(target: Target, guide: HyperNetworkGuide, num_draws: int) -> Tensor:
    """
    Minus the linearised bound, by the generator's tensor functions and a log-joint by hand.

    :param Target target: a posterior.
    :param guide: its guide, built, without output noise.
    :param int num_draws: S.
    """
    sampler = guide.samplers[0]
    generator, preconditioner = sampler.generator, sampler.preconditioner
    m = generator.output_dim
    noise = torch.randn(num_draws, m)
    drawn = generator.linearise(noise)
    entropy = drawn.log_abs_det + preconditioner.log_abs_det + 0.5 * noise.square().sum(-1)
    value = target.log_joint(preconditioner(drawn.value)) + entropy
    return -value.mean() - 0.5 * m * math.log(2 * math.pi)


def floor_step(target: Target, guide: HyperNetworkGuide, num_draws: int) -> Job:
    """A loop over the floor's loss with one fused Adam."""
    adam = torch.optim.Adam(guide.samplers[0].parameters(), lr=RATE, fused=True)

    def step() -> None:
        adam.zero_grad()
        floor_loss(target, guide, num_draws).backward()
        adam.step()
        adam.zero_grad()

    return step


def _objective(num_draws: int, *, path_gradient: bool = False) -> LinearisedELBO:
    """Without the path by default: the mathematics of the floor."""
    return LinearisedELBO(
        num_draws, vectorize_particles=True, max_plate_nesting=1, path_gradient=path_gradient
    )


def _pyro_step(target: Target, make_guide: Callable[[Any], Any], num_draws: int) -> Job:
    objective = Trace_ELBO(num_draws, vectorize_particles=True, max_plate_nesting=1)
    return svi_step(objective, target.model, make_guide(target.model), target.args, RATE)
