"""Sums over the sites of one particle that are no likelihood."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyro_implicit.objectives.likelihood import weighted_sum
from pyro_implicit.objectives.particle import Particle, sample_nodes

__all__ = ["explicit_entropy", "latent_log_prob", "sum_of"]


def latent_log_prob(particle: Particle, replaced: set[str]) -> Any:
    """
    :param Particle particle: one pass of guide and model.
    :param replaced: names of latents to leave out.
    :returns: the log-prior of all other latents, shape ``()`` (0.0 without any).
    """
    return sum_of(
        weighted_sum(node, particle.log_weight())
        for name, node in sample_nodes(particle.model).items()
        if not node["is_observed"] and name not in replaced
    )


def explicit_entropy(particle: Particle, replaced: set[str]) -> Any:
    """
    ``-log q`` of the sites that have one; for implicit latents that is the log-Jacobian.

    :param Particle particle: one pass of guide and model.
    :param replaced: names of latents to leave out.
    :returns: shape ``()`` (0.0 without any).
    """
    return -sum_of(
        node["log_prob_sum"]
        for node in particle.explicit_guide_sites()
        if node["name"] not in replaced
    )


def sum_of(values: Iterable[Any]) -> Any:
    """The sum of numbers and tensors, 0.0 if there are none."""
    total: Any = 0.0
    for value in values:
        total = total + value
    return total
