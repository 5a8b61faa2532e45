r"""
Semi-implicit variational inference: bounds on the true entropy by averaging over inner draws.

References

- `Semi-Implicit Variational Inference`, M. Yin, M. Zhou, ICML 2018. Section 3.
- `Doubly Semi-Implicit Variational Inference`, D. Molchanov, V. Kharitonov, A. Sobolev,
  D. Vetrov, AISTATS 2019. Section 3.
- `Importance Weighted Hierarchical Variational Inference`, A. Sobolev, D. Vetrov, NeurIPS 2019.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count
from pyro_implicit.distributions._base_dist import draw, is_one_law, loses_gradients
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import DensityError, GuideError, SiteError
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.noise_alone import check_function_of_noise
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.draw_particle import lost_gradients
from pyro_implicit.ops.logdet import is_zero, upcast
from pyro_implicit.ops.semi_implicit import (
    gauss_newton_proposal,
    gaussian_log_density,
    log_densities,
)

__all__ = ["SemiImplicitELBO"]


class SemiImplicitELBO(ImplicitELBO):
    r"""
    The true entropy of the guide between bounds that close with the number of inner draws.

    With ``sigma > 0`` the guide is a Gaussian mixture without end; with :math:`z_0` the noise that
    made a draw and :math:`z_1, \dots, z_K` new ones,

    .. math::  \mathbb H[q] \ge -\mathbb E \log \tfrac1{K+1}
        \textstyle\sum_{k=0}^{K} \mathcal N(\theta \mid g(z_k), \sigma^2 I)

    (the surrogate of Yin and Zhou 2018), and ``<=`` if the sum leaves out :math:`z_0` and divides
    by ``K``. The objective with ``bound="lower"`` is **a true lower bound on the evidence for any**
    ``K`` **and any generator**, which no linearised objective is; it is the yardstick for the
    others.

    With ``proposal="prior"`` the new noises are draws of its base distribution. They find the
    neighbourhood of ``theta`` in few dimensions and with a wide ``sigma`` only: elsewhere the bound
    tends to the entropy of the output noise, :math:`+ \log(K + 1)`. With
    ``proposal="gauss-newton"`` they come from the linearised posterior of ``z`` given ``theta`` and
    are weighed (Sobolev and Vetrov 2019). It is found from ``theta`` alone, so that the bound stays
    valid; it is tight for few ``z`` that are not folded, with about as many inner draws as noise
    dimensions. It costs some Jacobians and ``d x d`` systems per draw. Its gradient takes the
    proposal as given; what is left out vanishes as ``K`` grows or the proposal tends to the
    posterior.

    **A prior that is semi-implicit too** (an :class:`~pyro_implicit.ImplicitDistribution` in the
    model with a scale that is not 0) has its density bounded from below by ``K`` draws of its own
    noise (Molchanov et al. 2019); the sum is still a lower bound.

    Example::

        guide = HyperNetworkGuide(model, noise_dim=5, learn_scale="diagonal")
        objective = SemiImplicitELBO(
            8, num_inner=10, proposal="gauss-newton", vectorize_particles=True
        )
        fit(model, guide, x, y, objective=objective, seed=0)
        -objective.loss(model, guide, x, y)                # below the log-evidence, on average

    Sources:

    - `Semi-Implicit Variational Inference`, Yin and Zhou, ICML 2018.
    - `Doubly Semi-Implicit Variational Inference`, Molchanov et al., AISTATS 2019.
    - `Importance Weighted Hierarchical Variational Inference`, Sobolev and Vetrov, NeurIPS 2019.

    :param int num_particles: draws.
    :param int num_inner: inner draws ``K``.
    :param str bound: ``"lower"`` or ``"upper"``, of the entropy. The upper one is to be looked at,
        not to be trained with.
    :param str proposal: ``"prior"`` or ``"gauss-newton"``; ``"prior"`` alone serves a
        conditional guide.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO`.
    :raises ArgumentError: for values outside of these.
    """

    def __init__(
        self,
        num_particles: int = 1,
        *,
        num_inner: int = 50,
        bound: str = "lower",
        proposal: str = "prior",
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        self.num_inner = check_count("num_inner", num_inner)
        self.bound = check_choice("bound", bound, ("lower", "upper"))
        self.proposal = check_choice("proposal", proposal, ("prior", "gauss-newton"))

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "num_inner": self.num_inner,
            "bound": self.bound,
            "proposal": self.proposal,
        }

    @property
    def bounds_entropy(self) -> bool:  # type: ignore[override]
        """Whether the estimate is the lower bound."""
        return self.bound == "lower"

    def estimate(self, site: ImplicitSite, *, is_product: bool = False) -> Tensor:
        """
        A bound on the entropy by averaging the density over inner draws.

        :param ImplicitSite site: an implicit site with its draws.
        :param bool is_product: whether densities of rows are to be multiplied, and not their
            logarithms added: each row then has inner draws of its own, as the mean of a product is
            that of the factors only where these are independent. The first dimension of the draws
            is not one of rows.
        :returns: minus the bound on the log-density at each draw, shape
            ``site.distribution.batch_shape``.
        :raises GuideError: if the site's scale is 0, or with ``proposal="gauss-newton"`` if its
            noise is not standard normal or its guide conditional.
        :raises LayerError: if the generator is random or its draws depend on each other.
        """
        fn = site.distribution
        if is_zero(fn.scale):
            raise GuideError(
                f"implicit site {site.name!r} has scale 0: given its noise it has no density to "
                "average. Use scale=0.05, learn_scale='scalar' (of a conditional guide with "
                "proposal='prior' here), or another objective."
            )
        check_function_of_noise(fn.generator, fn.noise)  # type: ignore[arg-type]
        by_prior = partial(self._by_prior, is_product=is_product)
        log_q = by_prior if self.proposal == "prior" else self._by_inversion
        with torch.autocast(site.value.device.type, enabled=False):
            value = log_q(site.name, fn, site.value)
        if fn.preconditioner is not None:
            value = value - fn.preconditioner.log_abs_det
        return -value.to(site.value.dtype)

    def implicit_prior(self, fn: ImplicitDistribution, value: Tensor) -> Tensor:
        """
        A lower bound, in expectation, on the log-density of a semi-implicit prior.

        :raises DensityError: if its scale is 0.
        :raises SiteError: if its noise has learned parameters and no ``rsample``.
        """
        if is_zero(fn.scale):
            raise DensityError(
                "the prior is an ImplicitDistribution with scale 0: it has no density, nor a bound "
                "on one. Use KernelDensityRatioELBO(contrast='prior'), or give it a scale."
            )
        check_function_of_noise(fn.generator, value)
        if not fn.base_dist.has_rsample and loses_gradients(fn.base_dist, fn.base_dist.sample()):
            raise SiteError(lost_gradients("the prior", fn))
        w = upcast(value if fn.preconditioner is None else fn.preconditioner.inverse(value))
        log_p = self._mean_over_noise(fn, w) - math.log(self.num_inner)
        if fn.preconditioner is not None:
            log_p = log_p - fn.preconditioner.log_abs_det
        return log_p.to(value.dtype)

    # ---- log-densities in the generator's own coordinates

    def _by_prior(
        self, _: str, fn: ImplicitDistribution, value: Tensor, is_product: bool = False
    ) -> Tensor:
        w = upcast(value if fn.preconditioner is None else fn.preconditioner.inverse(value))
        others = self._mean_over_noise(fn, w, w.shape[1:-1] if is_product else ())
        if self.bound == "upper":  # theory/semi_implicit.md (semi-implicit-upper)
            return others - math.log(self.num_inner)
        # theory/semi_implicit.md (semi-implicit-lower)
        own = gaussian_log_density(w, upcast(fn.generator(fn.noise)), _wide(fn.scale))  # type: ignore[arg-type]
        return torch.logaddexp(own, others) - math.log(self.num_inner + 1)

    def _mean_over_noise(
        self, fn: ImplicitDistribution, w: Tensor, apart: tuple[int, ...] = ()
    ) -> Tensor:
        """The log of the sum over ``K`` new noises, the same for all draws but those of rows."""
        generator, base = fn.generator, fn.base_dist
        if apart or isinstance(generator, Conditioned) or not is_one_law(base):
            rows = torch.broadcast_shapes(base.batch_shape, apart)
            if isinstance(generator, Conditioned):
                rows = torch.broadcast_shapes(generator.context.shape[:-1], rows)
            means = upcast(generator(draw(base.expand(rows), (self.num_inner,))))
            means = means.reshape(self.num_inner, *[1] * (w.dim() - 1 - len(rows)), *rows, -1)
            return gaussian_log_density(w, means, _wide(fn.scale)).logsumexp(0)
        noise = draw(base, (self.num_inner,))
        noise = noise.reshape(self.num_inner, -1, *generator.noise_shape)
        means = upcast(generator(noise[:, 0]))  # a plate has only copies of one
        flat = log_densities(w.reshape(-1, w.shape[-1]), means, _wide(fn.scale))
        return flat.logsumexp(-1).reshape(w.shape[:-1])

    def _by_inversion(self, name: str, fn: ImplicitDistribution, value: Tensor) -> Tensor:
        if isinstance(fn.base_entropy(), Tensor):
            raise GuideError(
                f"implicit site {name!r} has noise that is not standard normal, which "
                "proposal='gauss-newton' does not know. Use proposal='prior'."
            )
        if isinstance(fn.generator, Conditioned):
            raise GuideError(
                f"implicit site {name!r} is conditional, which proposal='gauss-newton' does not "
                "know. Use proposal='prior'."
            )
        noise_shape, d = fn.generator.noise_shape, fn.generator.noise_dim
        w = value if fn.preconditioner is None else fn.preconditioner.inverse(value)
        flat = w.reshape(-1, w.shape[-1])

        def generator(z: Tensor) -> Tensor:
            noise = z.reshape(*z.shape[:-1], *noise_shape).to(value.dtype)
            values: Tensor = fn.generator(noise)
            return values.to(z.dtype)

        def jacobian(z: Tensor) -> Tensor:
            return fn.generator.jacobian(z.reshape(-1, *noise_shape).to(value.dtype)).to(z.dtype)

        wide, scale = upcast(flat), _wide(fn.scale)
        detached = scale.detach() if isinstance(scale, Tensor) else scale
        start = self._start(fn)
        proposal = gauss_newton_proposal(
            wide.detach(), generator, jacobian, d, detached, start=start
        )
        own = upcast(fn.noise.reshape(-1, d))[None]  # type: ignore[union-attr]
        new = proposal.sample(self.num_inner)
        z = new if self.bound == "upper" else torch.cat([own, new])
        # theory/semi_implicit.md (weighed-average)
        log_prior = gaussian_log_density(z, torch.zeros_like(z), 1.0)
        log_weight = log_prior - proposal.log_density(z)
        log_q = gaussian_log_density(wide, generator(z), scale) + log_weight
        return (log_q.logsumexp(0) - math.log(len(z))).reshape(w.shape[:-1])

    def _start(self, fn: ImplicitDistribution) -> Tensor | None:
        """
        Where the search for the proposal begins: not at the noise that made the draw.

        What depends on it bounds nothing.
        """
        return None


def _wide(scale: Tensor | float) -> Tensor | float:
    return upcast(scale) if isinstance(scale, Tensor) else scale
