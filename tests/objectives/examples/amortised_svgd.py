r"""
Amortised Stein variational gradient descent (Wang and Liu, 2016; Feng, Wang and Liu, 2017).

The draws move along :math:`\phi(x_i) = \tfrac1S \sum_j k(x_j, x_i)\, s_p(x_j) + \nabla_{x_j}
k(x_j, x_i)`, and the generator follows them. It needs no density of the guide: ``scale=0`` will do.
"""

from __future__ import annotations

import math

import torch

from pyro_implicit.objectives import ParticleBatch, ParticleObjective, Terms
from pyro_implicit.ops.kernels import gaussian_kernel, median_distance


class AmortisedSVGD(ParticleObjective):
    """Its value is no number to watch: only its gradient means something."""

    pools = True
    needs_score = True

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """See :class:`~pyro_implicit.objectives.ParticleObjective`."""
        x = torch.cat([value.flatten(1) for value in batch.values.values()], -1)
        score = torch.cat([s.flatten(1) for s in batch.score(create_graph=False).values()], -1)
        points = x.detach()
        width = median_distance(points, points) / math.sqrt(2 * math.log(len(points) + 1))
        kernel = gaussian_kernel(points, points, width)
        repulsion = (kernel.sum(-1, keepdim=True) * points - kernel @ points) / width**2
        direction = (kernel @ score + repulsion) / len(points)
        terms = {"alignment": (direction.detach() * x).sum(-1).mean()}
        if not batch.explicit_entropy.requires_grad:
            return terms
        return terms | {"explicit": (batch.log_joint + batch.explicit_entropy).mean()}
