"""How an objective reads the observed sites: the expected log-likelihood, or log-mean-exp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives.particle import PARTICLE_PLATE, Particle, sample_nodes

__all__ = ["batch_log_predictive", "expected_log_likelihood", "log_predictive", "weighted_sum"]


def expected_log_likelihood(particles: Sequence[Particle], num_particles: int) -> Any:
    """
    :param particles: all draws, or some of them.
    :param int num_particles: number of all draws.
    :returns: the share of these draws in the mean log-likelihood, shape ``()`` (0.0 without data).
    """
    total: Any = 0.0
    for particle in particles:
        for node in _observed_nodes(particle).values():
            total = total + weighted_sum(node, particle.log_weight())
    return total / num_particles


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
        draws = [
            draw + _of_rows(p.log_weight(), draw, names[0]) / power
            for p, draw in zip(particles, draws, strict=True)
        ]
        stacked = draws[0] if vectorised else torch.stack(draws)
        per_datum = (torch.logsumexp(power * stacked, 0) - math.log(stacked.shape[0])) / power
        scale: Any = particles[0].model.nodes[names[0]]["scale"]
        total = total + (per_datum * scale).sum()
    return total


def batch_log_predictive(particles: Sequence[Particle], vectorised: bool) -> Any:
    r"""
    The log of the mean over draws of the likelihood of all data of the minibatch together, times
    its weight in all data (the largest scale of an observed site; others enter in proportion).

    :param particles: all draws.
    :param bool vectorised: whether they are the first dimension of one particle.
    :returns: shape ``()`` (0.0 without data).
    """
    rows = [_log_prob_by_draw(p, vectorised) for p in particles]
    draws = rows[0] if vectorised else rows
    if not isinstance(draws, Tensor):
        if not all(isinstance(row, Tensor) for row in draws):
            return 0.0
        draws = torch.stack(draws)
    scales = [node["scale"] for node in _observed_nodes(particles[0]).values()]
    scale = max(float(s.max() if isinstance(s, Tensor) else s) for s in scales)
    return scale * (torch.logsumexp(draws / scale, 0) - math.log(len(draws)))


def _log_prob_by_draw(particle: Particle, vectorised: bool) -> Any:
    """The scaled log-likelihood of one draw, shape ``()``, or of each, shape ``(S,)``."""
    nodes, log_weight = _observed_nodes(particle).values(), particle.log_weight()
    terms = [node["log_prob"] for node in nodes]
    if terms and isinstance(log_weight, Tensor):
        terms.append(_of_rows(log_weight, terms[0], next(iter(nodes))["name"]))
    return sum(((t.reshape(len(t), -1).sum(1) if vectorised else t.sum()) for t in terms), 0.0)


def weighted_sum(node: Any, log_weight: Any) -> Any:
    """
    :param node: a site with its log-probability.
    :param log_weight: see :meth:`~pyro_implicit.objectives.particle.Particle.log_weight`.
    :returns: the log-probability's weighted sum, shape ``()``.
    :raises SiteError: if the site is not in the plate of the rows that the weights are of.
    """
    if not isinstance(log_weight, Tensor):
        return node["log_prob_sum"]
    return (_of_rows(log_weight, node["log_prob"], node["name"]).exp() * node["log_prob"]).sum()


def _of_rows(log_weight: Any, log_prob: Tensor, name: str) -> Any:
    """The weights, if they are those of the rows of ``log_prob``."""
    if isinstance(log_weight, Tensor):
        shapes = log_weight.shape, log_prob.shape
        if torch.broadcast_shapes(*shapes) != shapes[1]:
            raise SiteError(
                f"site {name!r} has log-probabilities of shape {tuple(shapes[1])}, and the guide "
                f"draws mixtures for rows of shape {tuple(shapes[0])}; each row's mixture must "
                "explain data of that row. Put the site inside the plate of the rows, or use "
                "num_components=1."
            )
    return log_weight


def _observed_nodes(particle: Particle) -> dict[str, Any]:
    nodes = sample_nodes(particle.model)
    return {name: node for name, node in nodes.items() if node["is_observed"]}


def _datum_key(node: Any) -> Any:
    """Equal for sites that are parts of one datum: the same plates, turns of a loop and scale."""
    frames = [f for f in node["cond_indep_stack"] if f.name != PARTICLE_PLATE]
    turns = sorted((f.name, None if f.vectorized else f.counter) for f in frames)
    scale = node["scale"]
    if isinstance(scale, Tensor):  # by value: every site under one handler gets a tensor of its own
        scale = scale.item() if scale.numel() == 1 else (*scale.shape, *scale.flatten().tolist())
    return tuple(turns), scale


def _masked_log_prob(node: Any) -> Tensor:
    return scale_and_mask(node["unscaled_log_prob"], 1.0, node["mask"])
