r"""
Amortised Stein variational gradient descent.

References

- `Learning to Draw Samples: With Application to Amortized MLE for Generative Adversarial
  Learning`, D. Wang, Q. Liu, 2016.
- `Learning to Draw Samples with Amortized Stein Variational Gradient Descent`, Y. Feng, D. Wang,
  Q. Liu, UAI 2017.
"""

from __future__ import annotations

from typing import Any

import torch

from pyro_implicit.objectives.kernel_objective import KernelObjective
from pyro_implicit.objectives.particle_objective import Terms
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.objectives.path_direction import follow
from pyro_implicit.ops.score_difference import stein_smoothed, stein_squared_discrepancy

__all__ = ["AmortisedSVGD"]


class AmortisedSVGD(KernelObjective):
    r"""
    The generator follows its draws along the direction of Stein variational gradient descent.

    The direction at a draw is (Feng, Wang and Liu 2017)

    .. math::  \phi(x_i) = \tfrac1{n-1} \sum_{j \ne i} k(x_j, x_i)\, \nabla \log p(y, x_j) +
        \nabla_{x_j} k(x_j, x_i).

    It asks nothing of the guide but draws: no density, no output noise (``scale=0``), any number of
    noises. In expectation it is the direction of :class:`~pyro_implicit.objectives.KPG`, whose
    estimate takes the output noise and grows noisy as that shrinks. A draw is left out of its own
    mean, otherwise than in the paper, where few draws of it make the guide too narrow.

    Use it for guides with few noises or none of their own. In more than some ten dimensions
    kernels tell draws apart no longer, and guides come out too narrow.

    **The loss is not what is minimised**: it is the squared kernel Stein discrepancy of these
    draws, as a number to watch. It is 0 at the posterior and no bound on the evidence. Gradients of
    explicit sites and of the model's parameters are those of an evidence bound.

    Example::

        guide = HyperNetworkGuide(model, noise_dim=1, scale=0.0)  # fewer noises than latents
        fit(model, guide, x, y, objective=AmortisedSVGD(32, vectorize_particles=True), seed=0)

    Source: `Learning to Draw Samples with Amortized Stein Variational Gradient Descent`, Feng,
    Wang and Liu, UAI 2017.

    :param int num_particles: draws, at least 2. Use 30 or more.
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
        kernel: str = "gaussian",
        bandwidth: float = 0.5,
        width: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, kernel=kernel, bandwidth=bandwidth, width=width, **options)

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        See :meth:`ParticleObjective.terms_of`.

        :param ParticleBatch batch: all draws.
        :returns: ``negative_discrepancy``.
        :raises SiteError: if a site has a weight.
        """
        draws, width = self._draws_of(batch)
        score = draws.score(create_graph=False)
        with torch.no_grad():
            x = draws.points
            value = -stein_squared_discrepancy(self.kernel, x, score, width)
            direction = -stein_smoothed(self.kernel, x, score, width)
        return {"negative_discrepancy": follow(batch, draws, value, direction, score)}
