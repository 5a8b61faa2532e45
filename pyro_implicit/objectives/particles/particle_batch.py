"""All draws of one evaluation of an objective: what its hook is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import GuideError
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.mixture_weights import weights_of_rows
from pyro_implicit.objectives.particles.particle import Particle

__all__ = ["ParticleBatch"]


@dataclass(frozen=True)
class ParticleBatch:
    r"""
    ``S`` draws of the guide with the model's densities at them, vectorised or looped.

    Everything here has the draws as its first dimension.

    *Units.* Densities are those of all data: the scale of a minibatch and ``poutine.scale`` are
    multiplied in, masks are applied, plates and events are summed. Latents are in the unconstrained
    coordinates ``u`` of the guide, so that priors include the log-Jacobian
    :math:`\log|d\theta / du|`.

    :param particles: the passes of guide and model: ``S`` of them, or one if they are vectorised.
    :param bool vectorised: whether they are.
    :param int num_particles: draws of the whole evaluation, of which these are some or all.
    :param int first: index among them of the first draw here.
    """

    particles: Sequence[Particle]
    vectorised: bool
    num_particles: int
    first: int = 0
    _asked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return self.num_particles if self.vectorised else len(self.particles)

    @property
    def share(self) -> float:
        """The fraction of all draws of the evaluation that is here."""
        return len(self) / self.num_particles

    @property
    def differentiates_score(self) -> bool:
        """Whether the model's score was asked for with its graph, to be differentiated again."""
        return "graph of the score" in self._asked

    # ---- densities, shape (S,)

    @cached_property
    def log_likelihood(self) -> Tensor:
        """Log-density of the observed sites and factors, shape ``(S,)``."""
        return self._per_draw(lambda p: p.observed_nodes, weighted=True)

    @cached_property
    def log_prior(self) -> Tensor:
        """Log-density of all latents in the coordinates ``u``, shape ``(S,)``."""
        return self.log_density_of_latents() + self.log_jacobian

    def log_density_of_latents(self, but: Collection[str] = ()) -> Tensor:
        """
        The prior's log-density of all latents but some.

        :param but: names of latent sites of the model to leave out.
        :returns: log-density of the others in their own, constrained coordinates, shape ``(S,)``.
        """
        return self._per_draw(lambda p: _without(p.latent_nodes, but), weighted=True)

    @cached_property
    def log_jacobian(self) -> Tensor:
        r"""
        :math:`\log|d\theta / du|` of the latents that implicit sites make, shape ``(S,)``.

        It is 0 if the objective does not read their prior.
        """
        # the guide's Deltas carry it with the other sign
        return -self._per_draw(
            lambda p: {n: x for n, x in p.guide_nodes.items() if n in p.implicit_latents}
        )

    @cached_property
    def log_joint(self) -> Tensor:
        """``log_likelihood + log_prior``, shape ``(S,)``."""
        return self.log_likelihood + self.log_prior

    @cached_property
    def explicit_entropy(self) -> Tensor:
        """``-log q`` of the guide's sites that have a density, at their draws, shape ``(S,)``."""
        return -self._per_draw(lambda p: _without(p.guide_nodes, p.implicit_latents))

    @property
    def known_entropy(self) -> Tensor:
        """What the entropy has beside that of implicit sites, shape ``(S,)``."""
        if all(p.guide_nodes.keys() <= p.implicit_latents for p in self.particles):
            return self.log_jacobian
        return self.explicit_entropy + self.log_jacobian

    @property
    def implicit_latents(self) -> frozenset[str]:
        """Names of the model's sites that come from implicit sites of the guide."""
        return self.particles[0].implicit_latents

    # ---- implicit sites

    @cached_property
    def sites(self) -> dict[str, ImplicitSite]:
        """
        The implicit sites by name, with the draws of all particles in front.

        Each has its ``noise``, ``value``, ``distribution`` and ``means``.
        """
        if self.vectorised:
            return dict(self.particles[0].implicit)
        return {name: self._joined(name) for name in self.particles[0].implicit}

    @property
    def values(self) -> dict[str, Tensor]:
        """The draws of each implicit site, shape ``(S, *plates, m)``."""
        return {name: site.value for name, site in self.sites.items()}

    @property
    def noise(self) -> dict[str, Tensor]:
        """The noise of each implicit site, shape ``(S, *plates, *noise_shape)``."""
        return {name: site.noise for name, site in self.sites.items()}

    def means(self, num: int) -> dict[str, Tensor]:
        """
        Conditional means ``g(z)`` at fresh noise, for mixtures over it.

        :param int num: how many.
        :returns: by implicit site, shape ``(num, *plates, m)``.
        """
        return {name: site.means(num) for name, site in self.sites.items()}

    def score(self, create_graph: bool = True) -> dict[str, Tensor]:
        r"""
        The model's score at the draws, :math:`\nabla_u \log p(y, \theta(u))`.

        The objective must set ``needs_score``, so that it can be had without gradients of the
        parameters as well.

        :param bool create_graph: whether it can itself be differentiated.
        :returns: by implicit site, shape ``(S, *plates, m)``.
        :raises GuideError: if the draws do not depend on anything that can be differentiated.
        """
        leaves = [site.value for p in self.particles for site in p.implicit.values()]
        if not all(leaf.requires_grad for leaf in leaves):
            raise GuideError(
                "the model's score at the draws needs their gradients, which no parameter of the "
                "guide asks for. Write requires_grad_(True) for the guide, and needs_score = True "
                "in the objective."
            )
        if create_graph:
            self._asked.add("graph of the score")
        grads = torch.autograd.grad(
            self.log_joint.sum(), leaves, create_graph=create_graph, retain_graph=True
        )
        names = list(self.particles[0].implicit)
        if self.vectorised:
            return dict(zip(names, grads, strict=True))
        return {name: torch.stack(list(grads[i :: len(names)])) for i, name in enumerate(names)}

    def leading(self, keep: int, site: ImplicitSite) -> ImplicitSite | None:
        """
        Keeps those of a site's draws that are among the first of the whole evaluation.

        :param int keep: a number of draws of the whole evaluation.
        :param ImplicitSite site: one of :attr:`sites`.
        :returns: the site with those of its draws that are among the first ``keep``, or None.
        """
        count = min(keep - self.first, len(self))
        if count <= 0:
            return None
        return site if count == len(self) else site.first(count)

    def weigh(self, site: ImplicitSite, per_draw: Tensor) -> Tensor:
        """
        Adds up a term of each draw and row under the site's scale and mask.

        :param ImplicitSite site: one of :attr:`sites`, perhaps with some of its draws.
        :param torch.Tensor per_draw: a term for each draw and row, shape ``(n, *plates)``.
        :returns: its sum under the site's scale and mask, shape ``()``.
        """
        if self.vectorised:
            return self.particles[0].weigh(site.name, per_draw)
        if len(self.particles) == 1:
            return self.particles[0].weigh(site.name, per_draw[0])
        # a site with some of its draws has those of the first particles
        weighed = [
            p.weigh(site.name, term) for p, term in zip(self.particles, per_draw, strict=False)
        ]
        return torch.stack(weighed).sum()

    def weight(self, name: str) -> Any:
        """
        The weight of a site as one number.

        :param str name: an implicit site.
        :returns: the one number that a term of all its draws and rows together is multiplied by.
        :raises SiteError: if scale or mask differ between its rows.
        """
        return self.particles[0].weight(name)

    # ----

    def _joined(self, name: str) -> ImplicitSite:
        parts = [p.implicit[name] for p in self.particles]
        if len(parts) == 1:  # views, and what is kept with the draw
            one = parts[0]
            return one.with_draws(one.distribution.unsqueezed(), one.value.unsqueeze(0))
        noise = torch.stack([part.noise for part in parts])
        value = torch.stack([part.value for part in parts])
        return parts[0].with_draws(parts[0].distribution.given(noise), value)

    def _per_draw(
        self, nodes_of: Callable[[Particle], Mapping[str, Any]], weighted: bool = False
    ) -> Tensor:
        """Sums of log-densities, shape ``(S,)``; ``weighted``: by the mixtures of the guide."""
        rows = [self._sum(p, nodes_of(p), weighted) for p in self.particles]
        if self.vectorised:
            return rows[0]
        return torch.stack(rows) if len(rows) > 1 else rows[0].unsqueeze(0)

    def _sum(self, particle: Particle, nodes: Mapping[str, Any], weighted: bool) -> Tensor:
        """Shape ``(S,)`` of one vectorised pass, ``()`` of a looped one."""
        terms = []
        log_weight = particle.log_weight if weighted else 0.0
        for name, node in nodes.items():
            if "log_prob" not in node:
                continue  # the objective does not read it
            if isinstance(log_weight, Tensor):
                weight = weights_of_rows(log_weight, node["log_prob"], name).exp()
                term = weight * node["log_prob"]
            elif not self.vectorised:
                terms.append(node["log_prob_sum"])
                continue
            else:
                term = node["log_prob"]
            terms.append(term.reshape(len(self), -1).sum(1) if self.vectorised else term.sum())
        if not terms:
            return self.new_zeros(*([len(self)] if self.vectorised else []))
        return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]

    def new_zeros(self, *shape: int) -> Tensor:
        """
        Zeros, one for each draw.

        :param int shape: their shape.
        :returns: zeros of shape ``shape``, in the type and place of the log-densities.
        """
        particle = self.particles[0]
        nodes = (*particle.observed_nodes.values(), *particle.latent_nodes.values())
        like = next((node["log_prob"] for node in nodes), torch.zeros(()))
        return like.new_zeros(shape)


def _without(nodes: Mapping[str, Any], but: Collection[str]) -> dict[str, Any]:
    return {name: node for name, node in nodes.items() if name not in but}
