"""A training step of small models: the default guide, Pyro's guides, and a loop by hand."""

# Shape legend: S draws, m latents.
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.cost._speed_bare import bare_step
from benchmarks.cost._speed_models import TARGETS, Target
from benchmarks.cost._speed_timing import Job, Row, Settings, medians, rows_of
from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.training import RecordedObjective
from pyro_implicit.training.fitting.norm_clipped_adam import NormClippedAdam

__all__ = ["floor_loss", "steps"]

RATE = 1e-3
WARM_UP = 8  # steps after which an objective is recorded and has been compared
FLOOR, NORMAL = "floor, by hand", "AutoNormal"
EAGER, RECORDED = "implicit, eager", "implicit, recorded"
RECORDED_SVI = "implicit, recorded, in SVI"
BARE = "implicit, bare traces"
BASES: dict[str, tuple[str, float | None]] = {
    NORMAL: (FLOOR, None),
    "AutoMultivariateNormal": (FLOOR, None),
    BARE: (NORMAL, None),
    EAGER: (NORMAL, 1.15),
    RECORDED: (FLOOR, 1.2),
    RECORDED_SVI: (NORMAL, 1.15),
}


def steps(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of each target: milliseconds of a step of ``num_draws`` vectorised draws."""
    for name in settings["targets"]:
        with fixed_seed(seed):
            target, num_draws = TARGETS[name](), settings["num_draws"]
            guide = HyperNetworkGuide(target.model, init_from=settings["init_from"])
            guide.setup(*target.args)
            made = {
                method: _recorded(target, guide, step, num_draws, settings["tries"])
                for method, step in ((RECORDED, _fit_step), (RECORDED_SVI, _svi_step))
            }
            jobs = {
                FLOOR: floor_step(target, guide, num_draws),
                NORMAL: _pyro_step(target, AutoNormal, num_draws),
                "AutoMultivariateNormal": _pyro_step(target, AutoMultivariateNormal, num_draws),
                BARE: bare_step(target, guide, num_draws, RATE),
                EAGER: _svi_step(target, guide, _objective(num_draws)),
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


def _recorded(
    target: Target,
    guide: Any,
    step_of: Callable[[Target, Any, Any], Job],
    num_draws: int,
    tries: int,
) -> tuple[Job, str]:
    """
    A step with an objective whose steps are recorded, and what is to be told of that.

    It gives up where three steps of the graph were not faster by the clock, which other jobs of the
    machine can bring about.
    """
    num_tried = 0
    while True:
        num_tried += 1
        recorded = RecordedObjective(_objective(num_draws), hints=False)
        step = step_of(target, guide, recorded)
        for _ in range(WARM_UP):
            step()
        if recorded.is_recorded:
            return step, f"recorded at trial {num_tried}" if num_tried > 1 else ""
        if num_tried == tries:
            return step, f"not recorded: {recorded.reason}"


def _objective(num_draws: int) -> LinearisedELBO:
    return LinearisedELBO(num_draws, vectorize_particles=True, max_plate_nesting=1)


def _pyro_step(target: Target, make_guide: Callable[[Any], Any], num_draws: int) -> Job:
    objective = Trace_ELBO(num_draws, vectorize_particles=True, max_plate_nesting=1)
    return _svi_step(target, make_guide(target.model), objective)


def _svi_step(target: Target, guide: Any, objective: Any) -> Job:
    svi = SVI(target.model, guide, pyro.optim.Adam({"lr": RATE}), objective)
    return lambda: svi.step(*target.args)


def _fit_step(target: Target, guide: Any, objective: Any) -> Job:
    """A step as ``fit`` takes it."""
    adam = NormClippedAdam()

    def step() -> None:
        with poutine.trace(param_only=True) as capture:
            objective.loss_and_grads(target.model, guide, *target.args)
        nodes = capture.trace.nodes
        params = {k: nodes[k]["value"].unconstrained() for k in capture.trace.param_nodes}
        adam.step(params, RATE)

    return step
