r"""
Kernel semi-implicit variational inference (Cheng and others, ICML 2024): two batches of draws.

.. math::  \frac{1}{n n'} \sum_{i,j} k(x_i, x_j')\,
    (s_p(x_i) - s_i)^\top (s_p(x_j') - s_j'), \qquad s = \nabla_x \log q(x \mid z),

whose mean is the kernel Stein discrepancy of guide and posterior.
"""

from __future__ import annotations

from typing import Any

import torch

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.objectives import ParticleBatch, ParticleObjective, Terms
from pyro_implicit.ops.kernels import gaussian_kernel, median_distance


class KernelStein(ParticleObjective):
    """
    :param int num_particles: draws of both batches together, an even number.
    :param options: all others of :class:`~pyro_implicit.objectives.ParticleObjective`.
    """

    pools = True
    needs_score = True

    def __init__(self, num_particles: int = 20, **options: Any) -> None:
        if num_particles % 2:
            raise ArgumentError(f"num_particles={num_particles}; expected two equal batches.")
        super().__init__(num_particles, **options)

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """See :class:`~pyro_implicit.objectives.ParticleObjective`."""
        scores = batch.score()
        parts = []
        for name, site in batch.sites.items():
            log_q = site.distribution.conditional_log_prob(site.value)
            (conditional,) = torch.autograd.grad(log_q.sum(), site.value, create_graph=True)
            parts.append((scores[name] - conditional).flatten(1))
        delta = torch.cat(parts, -1)
        x = torch.cat([value.flatten(1) for value in batch.values.values()], -1)
        n = len(x) // 2
        kernel = gaussian_kernel(x[:n], x[n:], median_distance(x, x))
        return {"stein": -(kernel * (delta[:n] @ delta[n:].mT)).mean()}
