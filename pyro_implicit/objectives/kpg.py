r"""
Kernelised path gradients: the gradient of the KL divergence, smoothed over draws.

References

- `Semi-Implicit Variational Inference via Kernelized Path Gradient Descent`, T. Pielok, B. Bischl,
  D. Ruegamer, AISTATS 2026.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_flag
from pyro_implicit.objectives.kernel_objective import KernelObjective
from pyro_implicit.objectives.particle_objective import Terms
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.objectives.path_direction import follow
from pyro_implicit.ops.kernels import squared_distances
from pyro_implicit.ops.score_difference import smoothed, smoothing_weights, squared_discrepancy

__all__ = ["KPG"]


class KPG(KernelObjective):
    r"""
    The kernelised path gradient: draws move along the smoothed difference of two scores.

    The gradient of ``KL(q || p)`` is the mean of :math:`\delta(x)^\top dx` with :math:`\delta =
    \nabla \log q - \nabla \log p(y, \cdot)`. The score of the guide is not known; its mean under a
    kernel is, by the scores of the conditionals, :math:`-\varepsilon_j / \sigma` (Pielok, Bischl
    and Ruegamer 2026):

    .. math::  \Delta(x_i) = \tfrac1{n-1} \sum_{j \ne i} k(x_i, x_j)\, (-\varepsilon_j / \sigma -
        \nabla \log p(y, x_j)).

    In expectation it is what :class:`~pyro_implicit.objectives.AmortisedSVGD` follows, which is the
    only one for ``scale=0``. Its noise is that of ``1 / sigma``: with a small output noise SVGD's
    is far smaller, with a wide one KPG's is a little. No second derivative of the model is needed.
    Where the guide is the posterior it is 0; on the way there it is weighed by the guide's own
    density and seen through the kernel: a wide one moves the mean of the draws alone, a narrow one
    is noisy.

    **With** ``importance=True`` the weights are divided by the guide's density, :math:`w_{ij}
    \propto k(x_i, x_j) / \hat q(x_j)`, so that the mean is one under the kernel around
    :math:`x_i`, and its bias is the curvature of :math:`\delta` alone: none between Gaussians,
    whatever the width. (This form is derived here; it need not be the paper's KPG-IS.)
    :math:`\hat q` is the mixture over the noises of the same draws, so that this holds as long as
    ``sigma`` is not far below their distances.

    **The loss is not what is minimised**: it is the squared kernel Stein discrepancy that
    :class:`~pyro_implicit.objectives.KSIVI` estimates by the same draws, as a number to watch. It
    is 0 at the posterior and no bound on the evidence. Gradients of explicit sites and of the
    model's parameters are those of an evidence bound.

    Example::

        guide = HyperNetworkGuide(model, noise_dim=2, scale=0.1)
        fit(model, guide, x, y, objective=KPG(32, vectorize_particles=True), seed=0)

    Source: `Semi-Implicit Variational Inference via Kernelized Path Gradient Descent`, Pielok et
    al., AISTATS 2026.

    :param int num_particles: draws, at least 2. Use 30 or more.
    :param bool importance: whether to correct for the density of the draws.
    :param str kernel: ``"gaussian"`` or ``"imq"`` (inverse multiquadric).
    :param float bandwidth: width of the kernel in units of the median distance of the draws.
    :param float width: width of the kernel itself, in the coordinates of the generator; by default
        ``bandwidth`` tells it.
    :param options: all others of :class:`~pyro_implicit.ParticleObjective`.
    :raises ArgumentError: for values outside of these.
    """

    def __init__(
        self,
        num_particles: int = 32,
        *,
        importance: bool = False,
        kernel: str = "gaussian",
        bandwidth: float = 0.3,
        width: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, kernel=kernel, bandwidth=bandwidth, width=width, **options)
        self.importance = check_flag("importance", importance)

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {"importance": self.importance}

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        See :meth:`ParticleObjective.terms_of`.

        :param ParticleBatch batch: all draws.
        :returns: ``negative_discrepancy``.
        :raises GuideError: if the scale of a site is 0.
        :raises SiteError: if a site has a weight.
        """
        draws, width = self._draws_of(batch)
        score = draws.score(create_graph=False)
        conditional = draws.conditional_score(create_graph=False)
        with torch.no_grad():
            x, difference = draws.points, conditional - score
            kernel = self._between(x, width)
            value = -squared_discrepancy(kernel, difference, "u-statistic")
            if self.importance:
                # theory/scores.md (kpg-importance)
                weights = smoothing_weights(self._log_kernel(x, width), _log_density(batch))
                direction = -(weights @ difference)
            else:
                # theory/scores.md (kpg-direction)
                direction = -smoothed(kernel, difference)
        return {"negative_discrepancy": follow(batch, draws, value, direction, score)}

    def _log_kernel(self, x: Tensor, width: Tensor) -> Tensor:
        """Finite for points that are too far apart for the kernel itself."""
        squares = squared_distances(x, x) / width**2
        return -0.5 * (squares if self.kernel == "gaussian" else squares.log1p())


def _log_density(batch: ParticleBatch) -> Tensor:
    """Of each draw under the mixture over the noises of all draws, up to a constant."""
    total: Any = 0.0
    for site in batch.sites.values():
        log_q = site.distribution.conditional_log_prob(site.value[:, None])  # draw, noise, plates
        total = total + log_q.flatten(2).sum(-1) if log_q.dim() > 2 else total + log_q
    log_density: Tensor = total.logsumexp(1) - math.log(len(batch))
    return log_density
