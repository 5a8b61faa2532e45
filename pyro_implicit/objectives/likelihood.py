"""The log of mean likelihoods over draws: of each datum, or of a whole minibatch."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_implicit.objectives.checks.batch_dims import PARTICLE_PLATE
from pyro_implicit.objectives.particles.mixture_weights import weights_of_rows
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.ops.alpha_energy import MIN_POWER, log_power_mean

__all__ = ["batch_log_predictive", "log_predictive"]


def log_predictive(batch: ParticleBatch, power: float = 1.0) -> Tensor:
    r"""
    Sums over data the log of the mean over draws of the likelihood of each datum.

    With a ``power`` ``a``, it is that of :math:`\tfrac1a \log \operatorname{mean} p^a`.

    A datum is one row of the innermost plates of its sites; sites in the same plates are one datum
    (a masked one counts as a likelihood of 1), unless ``poutine.scale`` weighs them differently.

    :param ParticleBatch batch: all draws.
    :param float power: ``a``, not 0.
    :returns: shape ``()`` (0 without data).
    """
    if len(batch) == 1:
        return _of_one_draw(batch)
    particles = batch.particles
    groups: dict[Any, list[str]] = {}
    for name, node in particles[0].observed_nodes.items():
        groups.setdefault(_datum_key(node), []).append(name)
    total, power = batch.new_zeros(), max(power, MIN_POWER)
    for names in groups.values():
        draws: list[Any] = [
            sum(_masked_log_prob(p.model.nodes[name]) for name in names) for p in particles
        ]
        draws = [
            draw + weights_of_rows(p.log_weight, draw, names[0]) / power
            for p, draw in zip(particles, draws, strict=True)
        ]
        stacked = draws[0] if batch.vectorised else torch.stack(draws)
        per_datum = log_power_mean(stacked, power)
        scale: Any = particles[0].model.nodes[names[0]]["scale"]
        total = total + (per_datum * scale).sum()
    return total


def batch_log_predictive(batch: ParticleBatch) -> Any:
    r"""
    The log of the mean over draws of the likelihood of all data of the minibatch together.

    It is multiplied by the minibatch's weight in all data (the largest scale of an observed site;
    others enter in proportion).

    :param ParticleBatch batch: all draws.
    :returns: shape ``()`` (0 without data).
    """
    nodes = batch.particles[0].observed_nodes.values()
    if not nodes:
        return batch.new_zeros()
    if len(batch) == 1:
        return _of_one_draw(batch)
    scales = [node["scale"] for node in nodes]
    scale = max(float(s.max() if isinstance(s, Tensor) else s) for s in scales)
    draws = _by_draw(batch, scale)
    return scale * (torch.logsumexp(draws, 0) - math.log(len(draws)))


def _of_one_draw(batch: ParticleBatch) -> Tensor:
    """
    The log-likelihood of a single draw.

    (Within the logarithm the weight of a mixture would only add its own score, of mean 0: the
    mixture's weights would learn nothing of the data.)
    """
    return batch.log_likelihood.sum()


def _by_draw(batch: ParticleBatch, scale: float) -> Tensor:
    """
    The log-likelihood of each draw in units of ``scale``, shape ``(S,)``.

    The weight of its mixtures is one of the draw and has no scale.
    """
    rows = []
    for particle in batch.particles:
        nodes, log_weight = particle.observed_nodes.values(), particle.log_weight
        terms = [node["log_prob"] / scale for node in nodes]
        if isinstance(log_weight, Tensor):
            terms.append(weights_of_rows(log_weight, terms[0], next(iter(nodes))["name"]))
        rows.append(
            sum((t.reshape(len(t), -1).sum(1) if batch.vectorised else t.sum()) for t in terms)
        )
    return rows[0] if batch.vectorised else torch.stack(rows)


def _datum_key(node: Any) -> Any:
    """Equal for sites that are parts of one datum: the same plates, turns of a loop and scale."""
    frames = [f for f in node["cond_indep_stack"] if f.name != PARTICLE_PLATE]
    turns = sorted((f.name, None if f.vectorized else f.counter) for f in frames)
    scale = node["scale"]
    if isinstance(scale, Tensor):  # by value: every site under one handler gets a tensor of its own
        scale = scale.item() if scale.numel() == 1 else (*scale.shape, *scale.flatten().tolist())
    return tuple(turns), scale


def _masked_log_prob(node: Any) -> Tensor:
    weighted: Tensor = scale_and_mask(node["unscaled_log_prob"], 1.0, node["mask"])
    return weighted
