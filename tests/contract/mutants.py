"""
Small faults of the package, as a plugin of pytest: ``PYRO_IMPLICIT_MUTANT=<name> pytest -p
tests.contract.mutants tests/contract/test_weights.py`` must fail. See ``test_mutants.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from pyro_implicit.distributions.diagonal_mixture import WeightedDraws
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.objectives import likelihood
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.objectives.particles import draw_particle as traces
from pyro_implicit.objectives.particles.particle import Particle
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch

MUTANTS: dict[str, Callable[[], None]] = {}


def mutant(function: Callable[[], None]) -> Callable[[], None]:
    MUTANTS[function.__name__] = function
    return function


def _without(node: Any, *keys: str) -> Any:
    """A site as if it had no scale or no mask."""
    neutral = {"scale": 1.0, "mask": None}
    changed = dict(node) | {key: neutral[key] for key in keys}
    value = likelihood.scale_and_mask(
        changed["unscaled_log_prob"], changed["scale"], changed["mask"]
    )
    return changed | {"log_prob": value, "log_prob_sum": value.sum()}


def _property(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes the nodes that a property of a particle tells."""
    nodes = vars(Particle)[name].func
    setattr(Particle, name, property(lambda self: change(nodes(self))))


def _all_without(nodes: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {
        name: _without(node, *keys) if "unscaled_log_prob" in node else node
        for name, node in nodes.items()
    }


def _observed_without(*keys: str) -> None:
    _property("observed_nodes", lambda nodes: _all_without(nodes, *keys))


def _replace(function: Any, other: Any) -> None:
    """In every module of the package that knows the function."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pyro_implicit."):
            for key, value in list(vars(module).items()):
                if value is function:
                    setattr(module, key, other)


def _latent_without(*keys: str) -> None:
    _property("latent_nodes", lambda nodes: _all_without(nodes, *keys))


def _entropy_without(*keys: str) -> None:
    def weigh(self: Particle, name: str, per_draw: Any) -> Any:
        node = dict(self.guide.nodes[name]) | {k: {"scale": 1.0, "mask": None}[k] for k in keys}
        return traces.scale_and_mask(per_draw, node["scale"], node["mask"]).sum()

    Particle.weigh = weigh  # type: ignore[method-assign]


def _jacobian_without(*keys: str) -> None:
    _property("guide_nodes", lambda nodes: _all_without(nodes, *keys))


@mutant
def likelihood_ignores_scale() -> None:
    _observed_without("scale")


@mutant
def likelihood_ignores_mask() -> None:
    _observed_without("mask")


@mutant
def prior_ignores_scale() -> None:
    _latent_without("scale")


@mutant
def prior_ignores_mask() -> None:
    _latent_without("mask")


@mutant
def entropy_ignores_scale() -> None:
    _entropy_without("scale")


@mutant
def entropy_ignores_mask() -> None:
    _entropy_without("mask")


@mutant
def log_jacobian_ignores_scale() -> None:
    _jacobian_without("scale")


@mutant
def log_jacobian_ignores_mask() -> None:
    _jacobian_without("mask")


@mutant
def joint_estimate_ignores_weight() -> None:
    Particle.weight = lambda self, name: 1.0  # type: ignore[method-assign]


@mutant
def predictive_ignores_mask() -> None:
    likelihood._masked_log_prob = lambda node: node["unscaled_log_prob"]


@mutant
def predictive_ignores_weight() -> None:
    log_predictive = likelihood.log_predictive

    def ignoring(batch: ParticleBatch, *options: Any) -> Any:
        for particle in batch.particles:
            for node in particle.observed_nodes.values():
                node["scale"] = 1.0
        return log_predictive(batch, *options)

    _replace(log_predictive, ignoring)


@mutant
def predictive_is_a_sum_over_draws() -> None:
    likelihood.math = SimpleNamespace(log=lambda number: 0.0)  # type: ignore[assignment]


@mutant
def batch_predictive_ignores_weight() -> None:
    batch = likelihood.batch_log_predictive

    def ignoring(particles: ParticleBatch) -> Any:
        before = vars(Particle)["observed_nodes"]
        Particle.observed_nodes = property(  # type: ignore[assignment]
            lambda self: _all_without(before.func(self), "scale")
        )
        try:
            return batch(particles)
        finally:
            Particle.observed_nodes = before  # type: ignore[method-assign]

    _replace(batch, ignoring)


@mutant
def mixtures_are_drawn_without_weights() -> None:
    WeightedDraws._pyro_sample = lambda self, msg: None


@mutant
def guide_ignores_the_size_of_the_plate() -> None:
    rows = ConditionalGuide._rows

    def ignoring(self: Any, context: Any, args: Any, kwargs: Any) -> Any:
        plate, context = rows(self, context, args, kwargs)
        plate.size = len(context)
        return plate, context

    ConditionalGuide._rows = ignoring  # type: ignore[method-assign]


@mutant
def both_ignore_the_size_of_the_plate() -> None:
    draw = traces.draw_particle

    def ignoring(*args: Any, **kwargs: Any) -> Particle:
        particle = draw(*args, **kwargs)
        for trace in (particle.model, particle.guide):
            for node in traces.sample_nodes(trace).values():
                node["scale"] = 1.0
                if "unscaled_log_prob" in node:
                    node.update(_without(node, "scale"))
        return particle

    _replace(draw, ignoring)


@mutant
def guide_looks_at_other_rows() -> None:
    rows = ConditionalGuide._rows

    def first(self: Any, context: Any, args: Any, kwargs: Any) -> Any:
        plate, chosen = rows(self, context, args, kwargs)
        return plate, context[: len(chosen)]

    ConditionalGuide._rows = first  # type: ignore[method-assign]


@mutant
def model_chooses_its_rows_anew() -> None:
    without = traces._without_full_plates

    def free(trace: Any) -> Any:
        trace = without(trace)
        for name, node in list(trace.nodes.items()):
            if node["type"] == "sample" and traces.site_is_subsample(node):
                trace.remove_node(name)
        return trace

    traces._without_full_plates = free


@mutant
def particles_share_their_noise() -> None:
    draw = ParticleObjective._draw

    def again(self: Any, *args: Any) -> Particle:
        state = torch.get_rng_state()
        particle = draw(self, *args)
        torch.set_rng_state(state)
        return particle

    ParticleObjective._draw = again  # type: ignore[method-assign]


@mutant
def rows_share_their_noise() -> None:
    given = traces.ImplicitDistribution.given

    def shared(self: Any, noise: Any) -> Any:
        event = len(self.generator.noise_shape)
        if noise.dim() > event:
            noise = noise.select(-event - 1, 0).unsqueeze(-event - 1).expand_as(noise)
        return given(self, noise)

    traces.ImplicitDistribution.given = shared  # type: ignore[method-assign]


@mutant
def fresh_draws_are_not_new() -> None:
    def stale(self: ImplicitSite, num_samples: int) -> Any:
        noise = self.distribution.noise[:1]  # type: ignore[index]
        return self.distribution.given(noise.expand(num_samples, *noise.shape[1:])).rsample()

    ImplicitSite.fresh = stale  # type: ignore[method-assign]


_asked = os.environ.get("PYRO_IMPLICIT_MUTANT")
if _asked:
    MUTANTS[_asked]()
