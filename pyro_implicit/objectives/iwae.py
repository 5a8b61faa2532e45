r"""
Importance-weighted bounds on the evidence, from several draws within the logarithm.

References

- `Importance Weighted Autoencoders`, Y. Burda, R. Grosse, R. Salakhutdinov, ICLR 2016.
- `Alpha-divergence Variational Inference Meets Importance Weighted Auto-Encoders: Methodology and
  Asymptotics`, K. Daudel, J. Benton, Y. Shi, A. Doucet, JMLR 2023.
- `Importance Weighted Hierarchical Variational Inference`, A. Sobolev, D. Vetrov, NeurIPS 2019.
"""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives.checks.batch_dims import PARTICLE_PLATE
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particle_objective import ParticleObjective, Terms
from pyro_implicit.objectives.particles.particle import Particle, Reads
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.objectives.semi_implicit import SemiImplicitELBO
from pyro_implicit.ops.alpha_energy import MIN_POWER, log_power_mean

__all__ = ["IWAE"]


class IWAE(ParticleObjective):
    r"""
    The importance-weighted bound on the evidence, and the bounds between it and the ELBO.

    With ``S`` draws of weights :math:`w_s = p(y, \theta_s) / q(\theta_s)` it is

    .. math::  \frac{1}{1 - \alpha} \log \frac1S \sum_s w_s^{1 - \alpha} ,

    a lower bound on the log-evidence for every :math:`\alpha` from 0 (Burda, Grosse and
    Salakhutdinov 2016) to 1 (the ELBO); those between are of Daudel et al. (2023): with a larger
    :math:`\alpha` the bound is lower and its gradient less noisy.

    It serves **ordinary guides** and certified bijections by their densities, and any implicit
    guide with output noise by a bound on its density: ``num_inner`` noises and the one that made
    the draw are averaged as in :class:`~pyro_implicit.SemiImplicitELBO`, which keeps the mean of
    :math:`w` the evidence exactly (Sobolev and Vetrov 2019). Rows within one logarithm have noises
    of their own: ``num_inner`` passes of the generator for each.

    **Where all latents are in one plate with the data** (a latent for each row, as in a variational
    autoencoder) each row has a logarithm of its own, which is tighter and serves minibatches.
    Elsewhere the logarithm of a mean over minibatches bounds nothing, and is refused.

    **A tighter bound is not a better guide.** More draws make the gradient of the guide noisier,
    and a draw of weight 0 has none: a part of the guide may go astray at the price of its share of
    the draws (on a banana some ended far outside, at a bound within 0.2 nats of the evidence, and
    on a Gaussian of two latents the deviations of all draws were 60 times too large and more at
    bounds within 0.25). Use it to learn a model, or to tell the evidence after a fit with another
    objective; for the posterior begin with :class:`~pyro_implicit.LinearisedELBO`.

    Example::

        fit(model, guide, x, y, seed=0)
        objective = IWAE(1000, vectorize_particles=True)
        -objective.loss(model, guide, x, y)                # below the log-evidence, on average

    Sources:

    - `Importance Weighted Autoencoders`, Burda et al., ICLR 2016.
    - `Alpha-divergence Variational Inference Meets Importance Weighted Auto-Encoders`, Daudel et
      al., JMLR 2023.
    - `Importance Weighted Hierarchical Variational Inference`, Sobolev and Vetrov, NeurIPS 2019.

    :param int num_particles: draws within the logarithm.
    :param float alpha: from 0 to 1.
    :param int num_inner: noises for the density of an implicit site.
    :param str proposal: where these come from, ``"gauss-newton"`` (the linearised posterior of the
        noise) or ``"prior"``, which alone serves a conditional guide with output noise.
    :param options: all others of :class:`~pyro_implicit.ParticleObjective`.
    :raises ArgumentError: for values outside of these.
    """

    pools = True
    reads = Reads(implicit_site=False)

    def __init__(
        self,
        num_particles: int = 8,
        *,
        alpha: float = 0.0,
        num_inner: int = 10,
        proposal: str = "gauss-newton",
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        self.alpha = check_number("alpha", alpha, minimum=0, maximum=1, why=" (1 is the ELBO)")
        self.num_inner = check_count("num_inner", num_inner)
        self.proposal = check_choice("proposal", proposal, ("gauss-newton", "prior"))
        self._density = SemiImplicitELBO(num_inner=num_inner, proposal=proposal)

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "alpha": self.alpha,
            "num_inner": self.num_inner,
            "proposal": self.proposal,
        }

    @property
    def is_bound(self) -> bool:
        """Whether minus the loss is a lower bound on the evidence, in expectation: always."""
        return True

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        See :meth:`ParticleObjective.terms_of`.

        :param ParticleBatch batch: all draws.
        :returns: ``log_evidence``.
        :raises GuideError: if the scale of a site is 0 and its generator no certified bijection, or
            with ``proposal="gauss-newton"`` if its noise is not standard normal or its guide
            conditional.
        :raises LayerError: if a generator is random or its draws depend on each other.
        :raises SiteError: for a minibatch, unless all sites are in its plate.
        """
        rows = _common_plates(batch.particles[0])
        power = 1 - self.alpha
        if power < MIN_POWER or len(batch) == 1:
            return {"log_evidence": self._log_weights(batch, {}, is_sum=True).mean()}
        _check_all_rows(batch.particles[0], rows)
        times = 1.0
        for frame in rows.values():
            times *= frame.full_size / frame.size
        # theory/semi_implicit.md (iwae-bound, vr-iwae-bound), a logarithm for each row
        log_weights = self._log_weights(batch, rows) / times
        return {"log_evidence": times * log_power_mean(log_weights, power).sum()}

    def _log_weights(
        self, batch: ParticleBatch, rows: dict[str, Any], is_sum: bool = False
    ) -> Tensor:
        """By draw and row, shape ``(S, R)``; ``(S, 1)`` where there are no common plates."""
        dims = {frame.dim for frame in rows.values()}
        nodes = batch.particles[0].guide.nodes
        entropies = {
            # theory/semi_implicit.md (iwae-bound): rows of one logarithm are a product
            name: self._entropy(site, not (is_sum or _frames(nodes[name]).keys() <= rows.keys()))
            for name, site in batch.sites.items()
        }
        parts = []
        for index, particle in enumerate(batch.particles):
            scored = [n for n in particle.model_nodes.values() if "log_prob" in n]
            terms = [node["log_prob"] for node in scored]
            terms += [-n["log_prob"] for n in particle.guide_nodes.values() if "log_prob" in n]
            for name, entropy in entropies.items():
                node = particle.guide.nodes[name]
                own = entropy if batch.vectorised else entropy[index]
                terms.append(scale_and_mask(own, node["scale"], node["mask"]))
            kept = dims | ({_particle_dim(scored)} if batch.vectorised else set())
            parts.append(sum((_summed(term, kept) for term in terms), batch.new_zeros()))
        joined = parts[0] if batch.vectorised else torch.stack(parts)
        return joined.reshape(len(batch), -1)

    def _entropy(self, site: ImplicitSite, is_product: bool) -> Tensor:
        """Minus the log-density at each draw, or a bound on it."""
        fn = site.distribution
        if fn.is_bijective:
            return fn.half_log_det() - fn.base_dist.log_prob(fn.noise)  # type: ignore[arg-type]
        return self._density.estimate(site, is_product=is_product)


def _summed(term: Tensor, kept: set[int]) -> Tensor:
    """The sum over all dimensions but some, which stay where they are."""
    dims = [dim for dim in range(-term.dim(), 0) if dim not in kept]
    return term.sum(dims, keepdim=True) if dims else term


def _particle_dim(nodes: list[Any]) -> int:
    frames = (frame for node in nodes for frame in node["cond_indep_stack"])
    dim: int = next(frame.dim for frame in frames if frame.name == PARTICLE_PLATE)
    return dim


def _frames(node: Any) -> dict[str, Any]:
    return {f.name: f for f in node["cond_indep_stack"] if f.name != PARTICLE_PLATE}


def _sites(particle: Particle) -> list[Any]:
    """The sites of the model that have a density, and the implicit ones of the guide."""
    nodes = (*particle.observed_nodes.values(), *particle.latent_nodes.values())
    model = [node for node in nodes if "log_prob" in node]
    guide = [node for node in particle.guide_nodes.values() if "log_prob" in node]
    return [*model, *guide, *(particle.guide.nodes[name] for name in particle.implicit)]


def _common_plates(particle: Particle) -> dict[str, Any]:
    """The vectorised plates that all sites are in, by name."""
    found = [_frames(node) for node in _sites(particle)]
    return {
        name: frame
        for name, frame in found[0].items()
        if frame.vectorized and all(name in frames for frames in found)
    }


def _check_all_rows(particle: Particle, rows: dict[str, Any]) -> None:
    """Refuses a minibatch within the logarithm."""
    for node in _sites(particle):
        for name, frame in _frames(node).items():
            if name in rows or frame.full_size is None or frame.full_size == frame.size:
                continue
            raise SiteError(
                f"plate {name!r} shows {frame.size} of its {frame.full_size} rows, and not all "
                "sites are in it: the logarithm of a mean over draws is then no sum over rows, and "
                "bounds nothing. Pass all rows, or write num_particles=1, alpha=1, LinearisedELBO "
                "or SemiImplicitELBO."
            )
