"""Objectives that are an evidence lower bound but for one term, the entropy or the divergence."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import reduce
from operator import add
from typing import Any

from pyro.infer.autoguide import (
    AutoContinuous,
    AutoGaussian,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoNormal,
    AutoStructured,
)
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_guide, check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.likelihood import log_predictive
from pyro_implicit.objectives.particle_objective import ParticleObjective, Terms
from pyro_implicit.objectives.particles.mapped_draws import VMAP
from pyro_implicit.objectives.particles.particle import Reads
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch

__all__ = ["ImplicitELBO"]


class ImplicitELBO(ParticleObjective):
    r"""
    The evidence lower bound, or a stand-in for it, of a guide that has implicit sites.

    It is

    .. math::  \mathbb E_q[\log p(y \mid \theta)]
        + \lambda\,(\alpha\,\mathbb E_q[\log p(\theta)] + \mathbb H[q]),

    with :math:`\lambda` = ``kl_weight`` and :math:`\alpha` = ``prior_weight``. Explicit guide
    sites enter with their ``-log q`` as usual. **A new objective of this kind fills one hook**,
    :meth:`estimate`:

    * with ``replaces = "entropy"`` it returns an entropy estimate for every draw, or, with
      ``joint = True``, one number for all draws together;
    * with ``replaces = "kl"`` it returns an estimate of ``KL(q || p)`` for all draws together; the
      density of the prior of the site's latents is then not evaluated, and ``site.prior`` draws
      from it.

    A joint objective sees all particles at once, also when they are looped. The likelihood is the
    business of :meth:`likelihood_of`; all else that an objective may say of itself is told by
    :class:`~pyro_implicit.objectives.particle_objective.ParticleObjective`.

    Example::

        class BijectiveELBO(ImplicitELBO):
            def estimate(self, site):  # the noise's entropy, and how the map stretches it
                return site.distribution.base_entropy() + site.distribution.half_log_det()

        objective = BijectiveELBO(8, vectorize_particles=True)
        fit(model, HyperNetworkGuide(model), x, y, objective=objective, seed=0)

    :param int num_particles: number of draws.
    :param vectorize_particles: draw them in one vectorised pass; the model then needs plates
        or ``.to_event`` for every batch dimension, as for any Pyro objective. ``"vmap"``, of
        objectives that can: see :class:`~pyro_implicit.ParticleObjective`.
    :param max_plate_nesting: number of plate dimensions, found by one run of model and guide if
        infinite.
    :param float kl_weight: weight of the whole KL term (tempering). 1 is the honest ELBO.
    :param float prior_weight: weight of the log-prior alone. 1 is the honest ELBO.
    :param int num_entropy_particles: draws that the entropy is estimated with; all by default.
    :param str likelihood: ``"expected"`` (the ELBO), or ``"per_datum"``: for each datum of the data
        plates the log of the *mean* likelihood over draws. The latter is **no bound**, often
        predicts better where data outnumber weights, and needs several particles to differ.
    :param bool retain_graph: passed to ``backward``.
    :param pyro_arguments: ``strict_enumeration_warning`` and the others that every objective of
        Pyro takes, see :class:`~pyro_implicit.ParticleObjective`.
    :raises ArgumentError: for values outside of these.
    """

    #: what :meth:`estimate` returns, ``"entropy"`` or ``"kl"``
    replaces: str = "entropy"
    #: whether it returns one number for all draws together; always so with ``"kl"``
    joint = False
    #: whether the entropy estimate is, for any guide and in expectation, never above the entropy;
    #: a linearised one is not: it counts mass twice where a nonlinear generator folds
    bounds_entropy: bool = False
    #: whether it never is for a guide whose draws and noises determine each other
    bounds_bijective: bool = False
    #: whether :meth:`estimate` asks for ``site.distribution.linearisation()``: the draws are then
    #: made with it, and the generator is run once for both
    linearises: bool = False
    #: whether it needs the exact log-determinant
    takes_log_det: bool = False

    def __init__(
        self,
        num_particles: int = 1,
        *,
        vectorize_particles: bool | str = False,
        max_plate_nesting: float = math.inf,
        kl_weight: float = 1.0,
        prior_weight: float = 1.0,
        num_entropy_particles: int | None = None,
        likelihood: str = "expected",
        retain_graph: bool | None = None,
        **pyro_arguments: Any,
    ) -> None:
        super().__init__(
            num_particles,
            vectorize_particles=vectorize_particles,
            max_plate_nesting=max_plate_nesting,
            retain_graph=retain_graph,
            **pyro_arguments,
        )
        self.kl_weight = check_number("kl_weight", kl_weight, minimum=0)
        self.prior_weight = check_number("prior_weight", prior_weight, minimum=0)
        self.num_entropy_particles = num_entropy_particles
        self.likelihood = check_choice("likelihood", likelihood, ("expected", "per_datum"))
        if vectorize_particles == VMAP and (
            self.pools or self.num_entropy_particles < num_particles
        ):
            raise ArgumentError(
                'vectorize_particles="vmap" maps one draw over all, so that none can be left out '
                "and their likelihoods cannot be averaged: write num_entropy_particles=None and "
                'likelihood="expected", or vectorize_particles=True.'
            )

    @property
    def num_entropy_particles(self) -> int:
        """Draws that the entropy is estimated with; ``num_particles`` may change at any time."""
        asked, most = self._num_entropy_particles, int(self.num_particles)
        return most if asked is None else min(asked, most)

    @num_entropy_particles.setter
    def num_entropy_particles(self, asked: int | None) -> None:
        name, most = "num_entropy_particles", int(self.num_particles)
        if asked is not None:
            asked = check_count(name, asked, 1, most, " (num_particles)")
        self._num_entropy_particles = asked

    @abstractmethod
    def estimate(self, site: ImplicitSite) -> Tensor:
        """
        Estimates the entropy or the divergence of one site: the hook that a subclass fills.

        :param ImplicitSite site: an implicit site with its draws.
        :returns: with ``replaces = "entropy"`` one value per draw, of shape
            ``site.distribution.batch_shape``; with ``joint`` or ``replaces = "kl"`` one number,
            shape ``()``.
        """

    @property
    def power(self) -> float:
        """The power of the likelihoods that are averaged over draws; 0: their logarithms are."""
        return 1.0 if self.likelihood == "per_datum" else 0.0

    def likelihood_of(self, batch: ParticleBatch) -> Terms:
        """
        The likelihood's term.

        :param ParticleBatch batch: some draws.
        :returns: ``log_likelihood``, its mean over them, or ``log_predictive`` with a
            :attr:`power` that is not 0.
        """
        if not self.power:
            return {"log_likelihood": batch.log_likelihood.mean()}
        return {"log_predictive": log_predictive(batch, self.power)}

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        See :meth:`ParticleObjective.terms_of`.

        :returns: ``log_likelihood`` (or ``log_predictive``), ``log_prior``, ``entropy`` and, for an
            objective that replaces the KL term, ``negative_kl``.
        """
        replaces_kl = self.replaces == "kl"
        left_out = batch.implicit_latents if replaces_kl else ()
        terms = self.likelihood_of(batch)
        log_prior = batch.log_density_of_latents(but=left_out).mean()
        terms["log_prior"] = _times(self.kl_weight * self.prior_weight, log_prior)
        entropy = batch.known_entropy.mean()
        if not replaces_kl:
            entropy = entropy + self._implicit_entropy(batch)
        terms["entropy"] = _times(self.kl_weight, entropy)
        if replaces_kl:
            terms["negative_kl"] = -self.kl_weight * self._of_all_draws(batch)
        return terms

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "num_entropy_particles": self.num_entropy_particles,
            "kl_weight": self.kl_weight,
            "prior_weight": self.prior_weight,
            "likelihood": self.likelihood,
        }

    @property
    def is_bound(self) -> bool:
        """
        Whether the value is, in expectation, a lower bound on the evidence, for any guide.

        True means proven: False does not say that it exceeds the evidence.
        """
        return self.bounds_entropy and self._has_whole_terms

    def is_bound_for(self, guide: Any) -> bool:
        """
        Whether the value is, in expectation, a lower bound on the evidence for this guide.

        It is if :attr:`is_bound` is, or because the guide's density is known: its generators are
        certain not to fold, or it has none.

        :param guide: the guide, built; one of this package tells by ``is_bijective``, by
            ``is_bijective_given_context`` if each row has a distribution of its own, or by
            ``has_density``; of an ``AutoGuideList`` all parts must.
        :returns: whether it is such a bound.
        :raises ArgumentError: if it cannot be called.
        """
        check_guide(guide)
        is_known = self.bounds_bijective and _has_known_density(guide)
        return self.is_bound or (is_known and self._has_whole_terms)

    @property
    def _has_whole_terms(self) -> bool:
        """Whether no term counts for more, or for less, than a bound allows."""
        return self.power == 0 and self.kl_weight >= 1 and self.prior_weight == 1

    # ----

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """The parts of a run that the objective needs; see :class:`ParticleObjective`."""
        kl = self.replaces == "kl"
        # vectorised draws are linearised together: all of them or, where some are used, not yet
        all_used = self.num_entropy_particles == self.num_particles or not self.vectorised
        return Reads(
            prior=not kl,
            prior_draws=kl,
            linearisation=self.linearises and all_used,
            log_det=self.takes_log_det and all_used,
            apart=self._parts_are_weighed,
        )

    @property
    def _parts_are_weighed(self) -> bool:
        """Whether likelihood and prior do not simply add up to the log-joint density."""
        return bool(self.power) or self.kl_weight * self.prior_weight != 1

    @property
    def pools(self) -> bool:  # type: ignore[override]
        """Whether the objective must see all draws at once."""
        return bool(self.joint or self.replaces == "kl" or self.power)

    def _implicit_entropy(self, batch: ParticleBatch) -> Any:
        """
        The mean over the first ``num_entropy_particles`` draws of the hook's estimates.

        It is given as the part of it that these draws have, divided by their share, since means
        over batches are taken.
        """
        if self.joint:
            return self._of_all_draws(batch)
        parts = []
        for site in batch.sites.values():
            some = batch.leading(self.num_entropy_particles, site)
            if some is not None:
                parts.append(batch.weigh(some, self.estimate(some)))
        if not parts:
            return 0.0
        return reduce(add, parts) / (self.num_entropy_particles * batch.share)

    def _of_all_draws(self, batch: ParticleBatch) -> Any:
        """The sum over sites of the hook's numbers, each under its site's scale and mask."""
        numbers = [batch.weight(s.name) * self.estimate(s) for s in batch.sites.values()]
        return sum(numbers, 0.0)


def _times(weight: float, term: Tensor) -> Tensor:
    """A term with its weight; most have none, and spare two small operations of a step."""
    return term if weight == 1 else weight * term


def _has_known_density(guide: Any) -> bool:
    """Whether the density of each part of a guide is known; of Pyro's those that have one."""
    if isinstance(guide, AutoGuideList):
        return bool(len(guide)) and all(_has_known_density(part) for part in guide)
    kinds = ("is_bijective", "is_bijective_given_context", "has_density")
    notes = [getattr(guide, kind) for kind in kinds if hasattr(guide, kind)]
    explicit = isinstance(guide, (AutoContinuous, AutoNormal, AutoGaussian))
    if isinstance(guide, AutoStructured):  # a part may be a point, or whatever a function returns
        given = guide.conditionals
        parts = list(given.values()) if isinstance(given, dict) else [given]
        explicit = all(kind in ("normal", "mvn") for kind in parts)
    is_point = isinstance(guide, AutoLaplaceApproximation)  # until it is a Gaussian
    return any(notes) if notes else explicit and not is_point
