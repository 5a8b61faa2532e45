"""The base of all objectives for implicit guides: everything but the one term that differs."""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import ELBO
from pyro.infer.util import is_validation_enabled
from torch import Tensor

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_flag,
    check_guide,
    check_model,
    check_number,
    check_state,
)
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import StateError
from pyro_implicit.objectives.finiteness import check_finite
from pyro_implicit.objectives.gradients import OwnGradients
from pyro_implicit.objectives.joined import first_draws, joined_sites
from pyro_implicit.objectives.likelihood import (
    expected_log_likelihood,
    log_predictive,
)
from pyro_implicit.objectives.particle import (
    PARTICLE_PLATE,
    ImplicitSite,
    Particle,
    draw_particle,
    plate_nesting,
)
from pyro_implicit.objectives.prior_draws import Prior
from pyro_implicit.objectives.shared_rows import SharedRows
from pyro_implicit.objectives.sums import explicit_entropy, latent_log_prob, sum_of

__all__ = ["ImplicitELBO"]

Terms = dict[str, Tensor]


class ImplicitELBO(ELBO):
    r"""
    Evidence lower bound, or a stand-in for it, of a guide that has implicit sites:

    .. math::  \mathbb E_q[\log p(y \mid \theta)]
        + \lambda\,(\alpha\,\mathbb E_q[\log p(\theta)] + \mathbb H[q]),

    with :math:`\lambda` = ``kl_weight`` and :math:`\alpha` = ``prior_weight``. Traces, particles,
    plates, minibatch scale, masks and explicit guide sites (whose ``-log q`` enters as usual) are
    dealt with here. **A new objective fills one hook**, :meth:`estimate`, and overrides nothing
    else:

    * with ``replaces = "entropy"`` it returns an entropy estimate for every draw, or, with
      ``joint = True``, one number for all draws together;
    * with ``replaces = "kl"`` it returns an estimate of ``KL(q || p)`` for all draws together; the
      density of the prior of the site's latents is then not evaluated, and ``site.prior`` draws
      from it;
    * with ``replaces = None`` it is never called: the objective has no entropy, and evaluates the
      prior only if ``prior_weight`` is not 0.

    A joint objective sees all particles at once, also when they are looped.

    Unlike Pyro's objectives it keeps nothing about a model between calls that could break the next.

    :param int num_particles: number of draws.
    :param bool vectorize_particles: draw them in one vectorised pass; the model then needs plates
        or ``.to_event`` for every batch dimension. Latents outside of ``n`` nested plates come with
        batch shape ``(S, 1, ..., 1)``, ``n`` ones, so that ``(w * x).sum(-1)`` lines up with data
        in a plate and ``x @ w.unsqueeze(-1)`` does not: it is refused.
    :param max_plate_nesting: number of plate dimensions, found by one run of model and guide if
        infinite.
    :param float kl_weight: weight of the whole KL term (tempering). 1 is the honest ELBO.
    :param float prior_weight: weight of the log-prior alone. 1 is the honest ELBO.
    :param int num_entropy_particles: draws that the entropy is estimated with; all by default.
    :param str likelihood: ``"expected"`` (the ELBO), or ``"per_datum"``: for each datum of the data
        plates the log of the *mean* likelihood over draws. The latter is **no bound**, often
        predicts better where data outnumber weights, and needs several particles to differ.
    :param bool retain_graph: passed to ``backward``.
    :raises ArgumentError: for values outside of these.
    """

    #: what :meth:`estimate` returns, ``"entropy"`` or ``"kl"``; None if there is no such term
    replaces: str | None = "entropy"
    #: whether it returns one number for all draws together; always so with ``"kl"``
    joint = False
    #: whether the entropy estimate is, for any guide and in expectation, never above the entropy;
    #: a linearised one is not: it counts mass twice where a nonlinear generator folds
    bounds_entropy: bool = False
    #: whether a guide without an implicit site is served too
    serves_explicit = False

    def __init__(
        self,
        num_particles: int = 1,
        *,
        vectorize_particles: bool = False,
        max_plate_nesting: float = math.inf,
        kl_weight: float = 1.0,
        prior_weight: float = 1.0,
        num_entropy_particles: int | None = None,
        likelihood: str = "expected",
        retain_graph: bool | None = None,
    ) -> None:
        num_particles = check_count("num_particles", num_particles)
        if num_entropy_particles is not None:
            num_entropy_particles = check_count(
                "num_entropy_particles", num_entropy_particles, 1, num_particles, " (num_particles)"
            )
        check_flag("vectorize_particles", vectorize_particles)
        if not (isinstance(max_plate_nesting, float) and max_plate_nesting == math.inf):
            max_plate_nesting = check_count("max_plate_nesting", max_plate_nesting, 0)
        check_choice("likelihood", likelihood, ("expected", "per_datum"))
        check_choice("retain_graph", retain_graph, (None, True, False))
        super().__init__(num_particles, vectorize_particles=False, retain_graph=retain_graph)
        self.vectorize_particles = vectorize_particles
        self.max_plate_nesting = max_plate_nesting
        self.kl_weight = check_number("kl_weight", kl_weight, minimum=0)
        self.prior_weight = check_number("prior_weight", prior_weight, minimum=0)
        self.num_entropy_particles = num_entropy_particles or num_particles
        self.likelihood = likelihood
        self._power = 1.0 if likelihood == "per_datum" else 0.0  # that draws are averaged with
        self._nesting_of: tuple[Any, Any, int] | None = None
        #: parts of the latest :meth:`differentiable_loss`, detached; for logs
        self.last_terms: Terms = {}

    @abstractmethod
    def estimate(self, site: ImplicitSite) -> Tensor:
        """
        The hook.

        :param ImplicitSite site: an implicit site with its draws.
        :returns: with ``replaces = "entropy"`` one value per draw, shape
            ``site.distribution.batch_shape``; with ``joint`` or ``replaces = "kl"`` one number.
        """

    def implicit_prior(self, fn: ImplicitDistribution, value: Tensor) -> Tensor:
        """
        The log-density of a prior that is itself implicit, or a bound on it, for objectives that
        have one; by default refused.

        :param ImplicitDistribution fn: the prior of a latent.
        :param torch.Tensor value: shape ``(*batch, m)``.
        :returns: shape ``batch``.
        """
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return {
            "objective": type(self).__name__,
            "num_particles": self.num_particles,
            "vectorize_particles": self.vectorize_particles,
            "num_entropy_particles": self.num_entropy_particles,
            "kl_weight": self.kl_weight,
            "prior_weight": self.prior_weight,
            "likelihood": self.likelihood,
            "is_bound": self.is_bound,
        }

    @property
    def is_bound(self) -> bool:
        """
        Whether the value is, in expectation, a lower bound on the evidence, for any guide: proven,
        so that False does not say that it exceeds it.
        """
        honest = self.likelihood == "expected" and self.kl_weight >= 1 and self.prior_weight == 1
        return self.bounds_entropy and honest

    def __getstate__(self) -> dict[str, Any]:
        # weak references cannot be pickled; terms may be on a device that a reader lacks
        return self.__dict__ | {"_nesting_of": None, "last_terms": {}}

    def __repr__(self) -> str:
        told = ("objective", "is_bound")  # the class's name; what follows from the arguments
        settings = ", ".join(f"{k}={v!r}" for k, v in self.settings.items() if k not in told)
        return f"{type(self).__name__}({settings})"

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """What training has changed in the objective itself: here nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Restores what :meth:`state_dict` returned; loads all of it or nothing.

        :raises StateError: if it is not a state of such an objective.
        """
        if check_state(self, state):
            raise StateError(
                f"{type(self).__name__} has no state to load; found the entries {sorted(state)}, "
                "which another objective has saved."
            )

    # ---- what Pyro calls

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """
        :returns: minus the objective, without gradients.
        :raises NonFiniteError: if a term is not finite; the message names the site. Only with
            Pyro's validation on (its default): the check waits for the device.
        """
        with torch.no_grad():
            return self.differentiable_loss(model, guide, *args, **kwargs).item()

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """
        :returns: minus the objective, shape ``()``, to be differentiated.
        :raises NonFiniteError: if a term is not finite; the message names the site. Only with
            Pyro's validation on (its default): the check waits for the device.
        """
        terms = self.terms(model, guide, *args, **kwargs)
        self.last_terms = {name: term.detach() for name, term in terms.items()}
        return -torch.stack([term.reshape(()) for term in terms.values()]).sum()

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """
        Adds the gradients of the loss to the parameters; looped particles one after the other, so
        that only one graph is alive at a time. If it fails, no parameter's gradient has changed.

        :returns: minus the objective.
        :raises NonFiniteError: with Pyro's validation on (its default), if a term is not finite, or
            a gradient; the message names the site or the parameter.
        """
        total = 0.0
        with OwnGradients() as gradients:
            for group in self._particle_groups(model, guide, args, kwargs):
                terms = self._terms(*group).values()
                loss = -torch.stack([term.reshape(()) for term in terms]).sum()
                if loss.requires_grad:
                    gradients.backward(loss, self.retain_graph)
                total += loss.item()
                if is_validation_enabled():
                    gradients.check_finite(total, group[0], model, guide)
        return total

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Terms:
        """
        The parts of the objective, weights included, so that they add up to minus the loss.

        :returns: ``log_likelihood`` (or ``log_predictive``), ``log_prior``, ``entropy`` and, for an
            objective that replaces the KL term, ``negative_kl``, as far as the objective has them;
            each of shape ``()``.
        """
        total: Terms = {}
        for group in self._particle_groups(model, guide, args, kwargs):
            for name, value in self._terms(*group).items():
                total[name] = total[name] + value if name in total else value
        return total

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError  # Pyro's abstract method; draw_particle takes its place

    # ---- particles

    @property
    def _estimates_jointly(self) -> bool:
        return self.joint or self.replaces == "kl"

    def _draw(self, model: Any, guide: Any, args: Any, kwargs: Any, nesting: float) -> Particle:
        """One pass of guide and model."""
        known = type(self).implicit_prior is not ImplicitELBO.implicit_prior
        prior = self.implicit_prior if known else None
        guided = self.replaces is not None
        return draw_particle(
            model,
            guide,
            args,
            kwargs,
            nesting,
            needs_prior=self.replaces == "entropy" if guided else self.prior_weight != 0,
            implicit_prior=prior,
            allow_explicit=self.serves_explicit,
            needs_guide=guided,
            weighted=not guided,
        )

    def _particle_groups(
        self, model: Any, guide: Any, args: Any, kwargs: Any
    ) -> Iterator[tuple[list[Particle], int]]:
        """Particles that are reduced together, and the index of the first of them."""
        check_model(model)
        check_guide(guide)
        if self._vectorised:
            nesting = self._nesting(model, guide, args, kwargs)
            plate = pyro.plate(PARTICLE_PLATE, self.num_particles, dim=-nesting - 1)
            particle = self._draw(plate(model), plate(guide), args, kwargs, nesting + 1)
            yield self._with_prior([particle], model, args, kwargs, nesting), 0
            return
        together = self._estimates_jointly or self._power
        rows = SharedRows()
        particles = []
        for index in range(self.num_particles):
            with rows if together else nullcontext():
                particle = self._draw(model, guide, args, kwargs, self.max_plate_nesting)
            if not together:
                yield [particle], index
            else:
                particles.append(particle)
        if together:
            yield self._with_prior(particles, model, args, kwargs, None), 0

    def _with_prior(
        self, particles: list[Particle], model: Any, args: Any, kwargs: Any, nesting: int | None
    ) -> list[Particle]:
        """For an objective that replaces the KL term: sites that can draw from the prior."""
        if self.replaces == "kl":
            prior = Prior(model, args, kwargs, nesting)
            prior.check(particles[0])
            particles[0].implicit.update(
                (name, replace(site, prior=partial(prior.draw, site)))
                for name, site in particles[0].implicit.items()
            )
        return particles

    def _nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> int:
        if self.max_plate_nesting != math.inf:
            return int(self.max_plate_nesting)
        known = self._nesting_of
        if known is None or known[0]() is not model or known[1]() is not guide:
            nesting = plate_nesting(model, guide, args, kwargs)
            self._nesting_of = (weakref.ref(model), weakref.ref(guide), nesting)
            return nesting
        return known[2]

    # ---- terms

    def _terms(self, particles: list[Particle], first: int) -> Terms:
        replaced = particles[0].implicit_latents() if self.replaces == "kl" else set()
        mean = 1.0 / self.num_particles
        terms = self._likelihood_terms(particles)
        if self.replaces is not None or self.prior_weight:
            log_prior = mean * sum_of(latent_log_prob(p, replaced) for p in particles)
            terms["log_prior"] = self.kl_weight * self.prior_weight * log_prior
        if self.replaces is not None:
            entropy = mean * sum_of(explicit_entropy(p, replaced) for p in particles)
            if not replaced:
                entropy = entropy + self._implicit_entropy(particles, first)
            terms["entropy"] = self.kl_weight * entropy
        if replaced:
            terms["negative_kl"] = -self.kl_weight * self._joint_estimates(particles)
        if is_validation_enabled():
            check_finite(terms, particles)
        return {name: torch.as_tensor(value) for name, value in terms.items()}

    def _implicit_entropy(self, particles: list[Particle], first: int) -> Any:
        """The mean over the first ``num_entropy_particles`` draws of the hook's estimates."""
        if self.joint:
            return self._joint_estimates(particles)
        keep = self.num_entropy_particles
        total: Any = 0.0
        vectorised = self._vectorised
        for index, particle in enumerate(particles, start=first):
            for name, site in particle.implicit.items():
                if vectorised and keep < self.num_particles:
                    site = first_draws(site, keep)
                elif not vectorised and index >= keep:
                    continue
                total = total + particle.weigh(name, self.estimate(site))
        return total / keep

    def _joint_estimates(self, particles: list[Particle]) -> Any:
        """The sum over sites of the hook's numbers, each under its site's scale and mask."""
        first = particles[0]
        sites = first.implicit.values() if self._vectorised else joined_sites(particles)
        return sum_of(first.weight(site.name) * self.estimate(site) for site in sites)

    @property
    def _vectorised(self) -> bool:
        return self.vectorize_particles and self.num_particles > 1

    def _likelihood_terms(self, particles: list[Particle]) -> Terms:
        if not self._power:
            return {"log_likelihood": expected_log_likelihood(particles, self.num_particles)}
        return {"log_predictive": log_predictive(particles, self._vectorised, self._power)}
