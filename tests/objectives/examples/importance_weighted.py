r"""
An importance-weighted bound (Burda and others, 2016) of a semi-implicit guide, whose density is
bounded from above by its own noise and ``K`` more (Molchanov and others, 2019).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pyro_implicit.objectives import ParticleBatch, ParticleObjective, Terms


class ImportanceWeighted(ParticleObjective):
    """
    :param int num_particles: draws within the logarithm.
    :param int num_inner: ``K``.
    :param options: all others of :class:`~pyro_implicit.objectives.ParticleObjective`.
    """

    pools = True
    is_bound = True  # type: ignore[assignment]

    def __init__(self, num_particles: int = 8, *, num_inner: int = 50, **options: Any) -> None:
        super().__init__(num_particles, **options)
        self.num_inner = num_inner

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """See :class:`~pyro_implicit.objectives.ParticleObjective`."""
        log_weight = batch.log_joint + batch.explicit_entropy
        for site in batch.sites.values():
            own = site.distribution.conditional_log_prob(site.value)
            others = site.at_fresh_noise(self.num_inner).conditional_log_prob(site.value[:, None])
            log_q = torch.cat([own[:, None], others], 1).logsumexp(1)
            log_q = log_q - math.log(self.num_inner + 1)
            log_weight = (
                log_weight - log_q.flatten(1).sum(1) if log_q.dim() > 1 else log_weight - log_q
            )
        return {"log_evidence": torch.logsumexp(log_weight, 0) - math.log(len(log_weight))}
