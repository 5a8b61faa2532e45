"""How an objective reads the observed sites: the expected log-likelihood, or log-mean-exp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_implicit.infer.traces import PARTICLE_PLATE, Particle, sample_nodes

__all__ = ["expected_log_likelihood", "log_predictive"]


def expected_log_likelihood(particles: Sequence[Particle], num_particles: int) -> Any:
    """
    :param particles: all draws, or some of them.
    :param int num_particles: number of all draws.
    :returns: the share of these draws in the mean log-likelihood, shape ``()`` (0.0 without data).
    """
    nodes = [node for p in particles for node in _observed_nodes(p).values()]
    return sum((node["log_prob_sum"] for node in nodes), 0.0) / num_particles


def log_predictive(particles: Sequence[Particle], vectorised: bool, power: float = 1.0) -> Any:
    r"""
    Sum over data of the log of the mean over draws of the likelihood of each datum; with a
    ``power`` ``a``, of :math:`\tfrac1a \log \operatorname{mean} p^a`.

    A datum is one row of the innermost plates of its sites; sites in the same plates are one datum
    (a masked one counts as a likelihood of 1), unless ``poutine.scale`` weighs them differently.

    :param particles: all draws.
    :param bool vectorised: whether they are the first dimension of one particle.
    :param float power: ``a``, not 0.
    :returns: shape ``()`` (0.0 without data).
    """
    groups: dict[Any, list[str]] = {}
    for name, node in _observed_nodes(particles[0]).items():
        groups.setdefault(_datum_key(node), []).append(name)
    total: Any = 0.0
    for names in groups.values():
        draws: list[Any] = [
            sum(_masked_log_prob(p.model.nodes[name]) for name in names) for p in particles
        ]
        stacked = draws[0] if vectorised else torch.stack(draws)
        per_datum = (torch.logsumexp(power * stacked, 0) - math.log(stacked.shape[0])) / power
        scale: Any = particles[0].model.nodes[names[0]]["scale"]
        total = total + (per_datum * scale).sum()
    return total


def _observed_nodes(particle: Particle) -> dict[str, Any]:
    nodes = sample_nodes(particle.model)
    return {name: node for name, node in nodes.items() if node["is_observed"]}


def _datum_key(node: Any) -> Any:
    """Equal for sites that are parts of one datum: the same plates, turns of a loop and scale."""
    frames = [f for f in node["cond_indep_stack"] if f.name != PARTICLE_PLATE]
    turns = sorted((f.name, None if f.vectorized else f.counter) for f in frames)
    scale = node["scale"]
    return tuple(turns), id(scale) if isinstance(scale, Tensor) else scale


def _masked_log_prob(node: Any) -> Tensor:
    return scale_and_mask(node["unscaled_log_prob"], 1.0, node["mask"])
