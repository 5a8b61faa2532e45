r"""
Kernel semi-implicit variational inference: the kernel Stein discrepancy as the loss.

References

- `Kernel Semi-Implicit Variational Inference`, Z. Cheng, L. Yu, T. Xie, S. Zhang, C. Zhang, ICML
  2024.
- `A Kernel Approach for Semi-implicit Variational Inference`, L. Yu, Z. Cheng, S. Zhang, C. Zhang,
  2026.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_implicit._checks import check_choice
from pyro_implicit.exceptions import ArgumentError, GuideError, SiteError
from pyro_implicit.objectives.kernel_objective import KernelObjective
from pyro_implicit.objectives.particle_objective import Terms
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.ops.kernels import riesz_kernel
from pyro_implicit.ops.score_difference import squared_discrepancy

__all__ = ["KSIVI"]


class KSIVI(KernelObjective):
    r"""
    The squared kernel Stein discrepancy of guide and posterior: no entropy, and no density ratio.

    With :math:`x = g(z) + \sigma \varepsilon` and the difference of the posterior's score and that
    of the draw's own conditional, :math:`\delta = -\varepsilon / \sigma - \nabla \log p(y, x)`, the
    loss is (Cheng et al. 2024)

    .. math::  \mathbb E\, k(x, x')\, \delta^\top \delta'

    for two independent draws. It is 0 at the posterior and positive elsewhere. The loss is this
    number and no bound on the evidence; its estimate is negative at times.

    Use it where the entropy is what other objectives get wrong, in few dimensions. It costs a
    second derivative of the model, which must have one (``torch.logaddexp`` has none where its
    arguments are far apart; write ``torch.logsumexp``). **It is blind to modes that are far apart,
    and to their proportions**: the score is the same on each of them whatever their shares.
    Minibatches leave the scores unbiased, not the loss: it gains :math:`\mathbb E\, k(x, x')
    \operatorname{tr} \operatorname{Cov}(s(x), s(x'))` over the choice of rows, since all draws see
    the same ones.

    **Its gradient is noisy where the guide is wide**: at rates of 0.03 a guide of two correlated
    latents went from the posterior to four times its width, without a word; at 0.003, and by
    ``fit``, it stays.

    Distances are in the coordinates of the generator, so that a preconditioned guide
    (``init_from="laplace"``) has kernels of the posterior's shape.

    Example::

        guide = HyperNetworkGuide(model, noise_dim=2, scale=0.1)
        fit(model, guide, x, y, objective=KSIVI(32, vectorize_particles=True), seed=0)

    Sources:

    - `Kernel Semi-Implicit Variational Inference`, Cheng et al., ICML 2024.
    - `A Kernel Approach for Semi-implicit Variational Inference`, Yu et al., 2026.

    :param int num_particles: draws, at least 2; an even number for two batches.
    :param str estimator: ``"u-statistic"`` compares all pairs of different draws, ``"two batches"``
        those of the first half with those of the second.
    :param str kernel: ``"gaussian"``, ``"imq"`` (inverse multiquadric) or ``"riesz"`` (minus the
        distance, made positive definite around the mean of the draws, which no gradient goes
        through, as through no median).
    :param float bandwidth: width of the kernel in units of the median distance of the draws.
    :param float width: width of the kernel itself, in the coordinates of the generator; by default
        ``bandwidth`` tells it.
    :param options: all others of :class:`~pyro_implicit.ParticleObjective`.
    :raises ArgumentError: for values outside of these.
    """

    kernels = ("gaussian", "imq", "riesz")

    def __init__(
        self,
        num_particles: int = 32,
        *,
        estimator: str = "u-statistic",
        kernel: str = "gaussian",
        bandwidth: float = 1.0,
        width: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, kernel=kernel, bandwidth=bandwidth, width=width, **options)
        self.estimator = check_choice("estimator", estimator, ("u-statistic", "two batches"))
        if estimator == "two batches" and self.num_particles % 2:
            raise ArgumentError(
                f"num_particles={num_particles} with estimator='two batches'; expected an even "
                "number, half of it for each batch."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {"estimator": self.estimator}

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        See :meth:`ParticleObjective.terms_of`.

        :param ParticleBatch batch: all draws.
        :returns: ``negative_discrepancy``.
        :raises GuideError: for a site of the guide that is not implicit, or one with scale 0.
        :raises SiteError: if the model has parameters of its own to learn, or a site has a weight.
        """
        _check_all_implicit(batch)
        _check_no_parameters(batch)
        draws, width = self._draws_of(batch)
        difference = draws.conditional_score(True) - draws.score(True)
        kernel = self._between(draws.points, width)
        return {"negative_discrepancy": -squared_discrepancy(kernel, difference, self.estimator)}

    def _between(self, points: Tensor, width: Tensor) -> Tensor:
        """The kernel between all points; a Riesz kernel is centred at their mean."""
        if self.kernel == "riesz":
            return riesz_kernel(points, points, points.detach().mean(0), width)
        return super()._between(points, width)


def _check_all_implicit(batch: ParticleBatch) -> None:
    """Refuses a site with a density: its score is not looked at."""
    particle = batch.particles[0]
    for name, node in particle.guide_nodes.items():
        if name not in particle.implicit_latents and not node["is_observed"]:
            raise GuideError(
                f"guide site {name!r} is an ordinary one, and KSIVI compares the scores of "
                "implicit sites alone. Give it to the implicit guide too, or use KPG or "
                "AmortisedSVGD."
            )


def _check_no_parameters(batch: ParticleBatch) -> None:
    """Refuses parameters of the model: the discrepancy tells nothing of the evidence."""
    particle = batch.particles[0]
    for name, node in particle.model.nodes.items():
        if node["type"] != "param" or name in particle.guide.nodes:
            continue
        if getattr(node["value"], "requires_grad", False):
            raise SiteError(
                f"the model learns parameter {name!r}, and KSIVI's loss tells nothing of the "
                "evidence that it should raise. Give it a prior, fix it (requires_grad_(False)), "
                "or use an objective that estimates the evidence, such as LinearisedELBO."
            )
