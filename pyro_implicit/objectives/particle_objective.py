"""The base of all objectives: from runs of guide and model to named terms and a loss."""

from __future__ import annotations

import copy
import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import pyro
import torch
from pyro.infer import ELBO
from pyro.infer.elbo import ELBOModule
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_guide,
    check_model,
    check_state,
)
from pyro_implicit._misspelt import check_class_options
from pyro_implicit._random import RandomStream, read_random_state, write_random_state
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.handlers.enumeration.discrete_latents import EnumerationNeeded
from pyro_implicit.objectives.checks.batch_dims import PARTICLE_PLATE
from pyro_implicit.objectives.checks.coupling_check import CouplingCheck
from pyro_implicit.objectives.checks.finiteness import check_finite
from pyro_implicit.objectives.checks.listed_check import ListedCheck
from pyro_implicit.objectives.checks.looped_watch import LoopedWatch
from pyro_implicit.objectives.checks.masked_watch import MaskedWatch
from pyro_implicit.objectives.checks.particle_coupling import blames_vectorisation
from pyro_implicit.objectives.checks.plate_nestings import PlateNestings
from pyro_implicit.objectives.gradients import OwnGradients
from pyro_implicit.objectives.particles.built_guide import build
from pyro_implicit.objectives.particles.draw_particle import draw_particle
from pyro_implicit.objectives.particles.mapped_draws import VMAP, MappedDraws, check_mapped_finite
from pyro_implicit.objectives.particles.particle import Particle, Reads
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.objectives.particles.prior_draws import PriorDraws
from pyro_implicit.objectives.particles.shared_rows import SharedRows
from pyro_implicit.objectives.pyro_arguments import check_not_swapped, check_pyro_arguments

__all__ = ["ParticleObjective", "Terms"]

#: terms of an objective by name, each of shape ``()``; they add up to minus the loss
Terms = dict[str, Tensor]


_NO_DEFAULT = object()  # of a setting that is no argument of the constructor


class TrainingStep(NamedTuple):
    """
    A training step of an objective.

    :param int number: from 1.
    :param guide: what is trained in it.
    """

    number: int
    guide: Any


class ParticleObjective(ELBO):
    r"""
    An objective made from draws of a guide.

    It runs guide and model, looped or vectorised, sees to plates, minibatch scale, masks and
    finiteness, and hands all draws to one hook.

    **A new objective fills** :meth:`terms_of`: given a
    :class:`~pyro_implicit.objectives.ParticleBatch`, return named numbers that add up to minus the
    loss. What else it may say of itself, all of it public:

    * :attr:`reads`: what of a run it needs (the prior's density, the guide's, draws of the prior);
    * :attr:`pools`: whether it must see all draws at once. If not, looped draws are handed over one
      at a time, so that one graph is alive at a time, and its terms are averaged;
    * :attr:`needs_score`: whether it asks for the model's gradient at the draws;
    * :attr:`can_be_mapped`: whether it takes ``vectorize_particles="vmap"``;
    * :meth:`implicit_prior`: the density of priors that are themselves implicit;
    * :attr:`networks`: networks of its own, shown by ``objective(model, guide).parameters()``;
    * :attr:`training_step`: the number of the step that is going on, for schedules;
    * :meth:`state_dict`, :meth:`load_state_dict`, :attr:`settings`, :attr:`is_bound`.

    (An objective that is an evidence bound but for its entropy is shorter as an
    :class:`~pyro_implicit.ImplicitELBO`.)

    *Discrete latents* of the model that are marked ``infer={"enumerate": "parallel"}``
    (``pyro.infer.config_enumerate``) are summed out by Pyro's own enumeration, as in
    ``TraceEnum_ELBO``: the batch then has the marginal densities. Their values are drawn afterwards
    by ``infer_discrete(poutine.replay(model, guide_trace), first_available_dim)``.

    Unlike Pyro's objectives it keeps nothing about a model between calls that could break the next.

    Example::

        class MaximumAPosteriori(ParticleObjective):
            pools = True  # it must see all draws at once

            def terms_of(self, batch):
                return {"log_joint": batch.log_joint.max()}

        objective = MaximumAPosteriori(8, vectorize_particles=True)
        fit(model, HyperNetworkGuide(model), x, y, objective=objective, seed=0)

    :param int num_particles: number of draws.
    :param vectorize_particles: True: draw them in one vectorised pass; the model then needs plates
        or ``.to_event`` for every batch dimension. Latents outside of ``n`` nested plates come with
        batch shape ``(S, 1, ..., 1)``, ``n`` ones, so that ``(w * x).sum(-1)`` lines up with data
        in a plate and ``x @ w.unsqueeze(-1)`` does not: it is refused. ``"vmap"``: run a model
        that is written for one draw under :func:`torch.func.vmap`, which takes ``x @ w`` and
        indexing, and no branch on a value (:class:`~pyro_implicit.LinearisedELBO` can).
        False: one after the other.
    :param max_plate_nesting: number of plate dimensions, found by one run of model and guide if
        infinite.
    :param bool retain_graph: passed to ``backward``.
    :param bool strict_enumeration_warning: taken, as by every objective of Pyro; nothing is warned.
    :param bool ignore_jit_warnings: taken likewise; nothing is traced by ``torch.jit``.
    :param jit_options: refused, unless None: it would do nothing.
    :param float tail_adaptive_beta: refused, unless Pyro's default: it would do nothing.
    :param unknown: options of other names, which are refused.
    :raises ArgumentError: for values outside of these.
    """

    #: what it needs of a run
    reads = Reads()
    #: whether it must see all draws at once, also when they are looped
    pools = False
    #: whether it asks for the model's score at the draws
    needs_score = False
    #: whether its terms can be those of one draw under ``torch.func.vmap``: it pools nothing, and
    #: its hook keeps nothing and reads no value of a tensor
    can_be_mapped = False

    def __init__(
        self,
        num_particles: int = 1,
        *,
        vectorize_particles: bool | str = False,
        max_plate_nesting: float = math.inf,
        retain_graph: bool | None = None,
        strict_enumeration_warning: bool = True,
        ignore_jit_warnings: bool = False,
        jit_options: dict[str, Any] | None = None,
        tail_adaptive_beta: float = -1.0,
        **unknown: Any,
    ) -> None:
        check_class_options(type(self), unknown)
        check_pyro_arguments(
            type(self).__name__,
            strict_enumeration_warning,
            ignore_jit_warnings,
            jit_options,
            tail_adaptive_beta,
        )
        num_particles = check_count("num_particles", num_particles)
        ways = (True, False, VMAP) if self.can_be_mapped else (True, False)
        check_choice("vectorize_particles", vectorize_particles, ways)
        if not (isinstance(max_plate_nesting, float) and max_plate_nesting == math.inf):
            max_plate_nesting = check_count("max_plate_nesting", max_plate_nesting, 0)
        check_choice("retain_graph", retain_graph, (None, True, False))
        super().__init__(  # type: ignore[no-untyped-call]
            num_particles,
            vectorize_particles=False,
            retain_graph=retain_graph,
            strict_enumeration_warning=strict_enumeration_warning,
            ignore_jit_warnings=ignore_jit_warnings,
        )
        self.vectorize_particles = vectorize_particles
        self.max_plate_nesting = max_plate_nesting
        #: networks that the objective trains itself, by name
        self.networks: dict[str, nn.Module] = {}
        #: parts of the latest :meth:`differentiable_loss`, detached; for logs
        self.last_terms: Terms = {}
        self._nestings = PlateNestings()
        #: whether a model with latents to sum out has been seen; None before the first draw
        self._enumerates: bool | None = None
        self._coupling, self._listed = CouplingCheck(), ListedCheck()
        self._looped, self._mapped, self._masked = LoopedWatch(), MappedDraws(), MaskedWatch()
        self._num_training_steps = 0
        self._training_step: TrainingStep | None = None

    # ---- what a subclass fills or says

    @abstractmethod
    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        Names the terms of the objective, from all draws: the hook that a subclass fills.

        :param ParticleBatch batch: ``n`` draws: all of them if the objective pools or the particles
            are vectorised, else one.
        :returns: named numbers, shape ``()``, whose sum is minus the loss: means over these draws.
            Means over batches are taken by the caller.
        """

    def implicit_prior(self, fn: ImplicitDistribution, value: Tensor) -> Tensor:
        """
        The log-density of a prior that is itself implicit, or a bound on it.

        By default such a prior is refused; objectives that can estimate it fill this.

        :param ImplicitDistribution fn: the prior of a latent.
        :param torch.Tensor value: shape ``(*batch, m)``.
        :returns: shape ``batch``.
        :raises NotImplementedError: here.
        """
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return {
            "objective": type(self).__name__,
            "num_particles": self.num_particles,
            "vectorize_particles": self.vectorize_particles,
            "is_bound": self.is_bound,
        }

    @property
    def is_bound(self) -> bool:
        """Whether minus the loss is a lower bound on the evidence, in expectation."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """
        What training has changed in the objective itself: here nothing.

        :returns: an empty dictionary; in objectives that learn, what :meth:`load_state_dict` reads.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Restores what :meth:`state_dict` returned; loads all of it or nothing.

        :param dict state: what was returned.
        :raises StateError: if it is not a state of such an objective.
        """
        if check_state(self, state):
            raise StateError(
                f"{type(self).__name__} has no state to load; found the entries {sorted(state)}, "
                "which another objective has saved."
            )

    @property
    def vectorised(self) -> bool:
        """Whether draws come from one vectorised pass in a plate of the particles."""
        vectorised: bool = self.vectorize_particles is True and self.num_particles > 1
        return vectorised

    def look_plainly(self) -> None:
        """Has the next evaluation look at draws outside of a map, where most are replayed."""
        self._mapped.looks_next = True

    @property
    def is_mapped(self) -> bool:
        """Whether one draw is mapped over all of them (``vectorize_particles="vmap"``)."""
        mapped: bool = self.vectorize_particles == VMAP and self.num_particles > 1
        return mapped

    @property
    def training_step(self) -> TrainingStep | None:
        """
        The number of the training step that is going on, if one is.

        A step is a call of :meth:`loss_and_grads`, or of :meth:`differentiable_loss` with gradients
        enabled.
        """
        return self._training_step

    # ---- what Pyro calls

    def __call__(self, model: nn.Module, guide: nn.Module) -> ELBOModule:
        """
        Binds the objective to a model and a guide, as one module.

        :returns: a module whose parameters are those of model, guide and :attr:`networks`.
        """
        module = super().__call__(model, guide)
        if self.networks:
            for name, network in self.networks.items():
                module.add_module(name, network)
        return module

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """
        The loss as a number.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: minus the objective, without gradients.
        :raises NonFiniteError: if a term is not finite; the message names the site. Only with
            Pyro's validation on (its default): the check waits for the device.
        """
        with torch.no_grad():
            terms = self.terms(model, guide, *args, **kwargs)
            self.last_terms = {name: term.detach() for name, term in terms.items()}
            return _minus_sum(terms).item()

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """
        The loss with its graph.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: minus the objective, shape ``()``, to be differentiated.
        :raises NonFiniteError: if a term is not finite; the message names the site. Only with
            Pyro's validation on (its default): the check waits for the device.
        """
        with self._step(guide):
            terms = self.terms(model, guide, *args, **kwargs)
        self.last_terms = {name: term.detach() for name, term in terms.items()}
        return _minus_sum(terms)

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """
        Adds the gradients of the loss to the parameters.

        Looped particles come one after the other, so that only one graph is alive at a time. If it
        fails, no parameter's gradient has changed.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: minus the objective.
        :raises NonFiniteError: with Pyro's validation on (its default), if a term is not finite, or
            a gradient; the message names the site or the parameter.
        """
        total, start = 0.0, time.perf_counter()
        with self._step(guide), self._gradients(), OwnGradients() as gradients:
            for terms, batch in self._parts(model, guide, args, kwargs):
                loss = _minus_sum(terms)
                if loss.requires_grad:
                    gradients.backward(loss, self.retain_graph)
                total += loss.item()
                if is_validation_enabled():
                    some = () if batch is None else batch.particles
                    second = batch is not None and batch.differentiates_score
                    gradients.check_finite(total, some, model, guide, second=second)
        if self.num_particles > 1 and not self.vectorize_particles:
            self._looped(time.perf_counter() - start, self, model, guide, args, kwargs)
        return total

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Terms:
        """
        The parts of the objective, weights included, so that they add up to minus the loss.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: what :meth:`terms_of` names, each of shape ``()``.
        """
        total: Terms = {}
        with self._gradients():
            for terms, _ in self._parts(model, guide, args, kwargs):
                for name, value in terms.items():
                    total[name] = total[name] + value if name in total else value
        return total

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError  # Pyro's abstract method; draw_particle takes its place

    def forget_models(self) -> None:
        """Forgets what was found out about the model in earlier calls, to look again."""
        self._nestings, self._coupling = PlateNestings(), CouplingCheck()
        self._listed, self._masked = ListedCheck(), MaskedWatch()
        self._training_step, self._enumerates, self._mapped = None, None, MappedDraws()

    # ---- draws

    @contextmanager
    def _step(self, guide: Any) -> Iterator[None]:
        """A training step, if gradients are enabled."""
        if torch.is_grad_enabled():
            self._num_training_steps += 1
            self._training_step = TrainingStep(self._num_training_steps, guide)
        try:
            yield
        finally:
            self._training_step = None

    def _gradients(self) -> torch.set_grad_enabled:
        """As the caller has them, or enabled if the hook asks for the model's score."""
        return torch.set_grad_enabled(torch.is_grad_enabled() or self.needs_score)

    def _shares(self, batch: ParticleBatch) -> Terms:
        """What a batch adds to the terms."""
        terms = self.terms_of(batch)
        share = batch.share
        if share != 1:
            terms = {name: share * value for name, value in terms.items()}
        if is_validation_enabled():
            check_finite(terms, batch.particles)
            if self.reads.guide:  # whose entropy it has
                self._masked(batch.particles[0])
        return terms

    def _batches(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Iterator[ParticleBatch]:
        """The draws of one evaluation, as the hook gets them."""
        check_model(model)
        check_guide(guide)
        count = self.num_particles
        if self.vectorised:
            build(guide, args, kwargs)
            nesting = self._nesting(model, guide, args, kwargs)
            plate = pyro.plate(PARTICLE_PLATE, count, dim=-nesting - 1)
            with blames_vectorisation(lambda: self._draw(model, guide, args, kwargs, nesting)):
                particle = self._draw(plate(model), plate(guide), args, kwargs, nesting + 1)
            if is_validation_enabled():
                self._coupling(model, args, kwargs, particle, count)
            particles = self._with_prior([particle], model, args, kwargs, nesting)
            yield ParticleBatch(particles, True, count)
            return
        pools, rows, particles = self.pools, SharedRows(), []
        for index in range(count):
            with rows if pools else nullcontext():
                particle = self._draw(model, guide, args, kwargs, self.max_plate_nesting)
            if pools:
                particles.append(particle)
            else:
                yield ParticleBatch([particle], False, count, index)
        if pools:
            particles = self._with_prior(particles, model, args, kwargs, None)
            yield ParticleBatch(particles, False, count)

    def _parts(
        self, model: Any, guide: Any, args: Any, kwargs: Any
    ) -> Iterator[tuple[Terms, ParticleBatch | None]]:
        """What some draws add to the terms, and these draws unless they are mapped."""
        check_not_swapped(model, type(self).__name__)
        if self.is_mapped:
            yield self._mapped_terms(model, guide, args, kwargs), None
        else:
            for batch in self._batches(model, guide, args, kwargs):
                yield self._shares(batch), batch
        if self._enumerates and is_validation_enabled():
            self._listed(model, guide, args, kwargs)

    def _mapped_terms(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Terms:
        """The terms of one draw, mapped over all draws."""
        check_model(model)
        check_guide(guide)
        build(guide, args, kwargs)
        count = self.num_particles

        def one() -> Terms:
            particle = self._draw(model, guide, args, kwargs, self.max_plate_nesting)
            return self.terms_of(ParticleBatch([particle], False, count))

        terms = self._mapped(one, count, model, guide)
        if is_validation_enabled():
            looped = copy.copy(self)
            looped.vectorize_particles = False
            check_mapped_finite(terms, lambda: looped.terms(model, guide, *args, **kwargs))
        return terms

    def _draw(self, model: Any, guide: Any, args: Any, kwargs: Any, nesting: float) -> Particle:
        """One pass of guide and model."""
        known = type(self).implicit_prior is not ParticleObjective.implicit_prior
        prior = self.implicit_prior if known else None
        draw = partial(draw_particle, model, guide, args, kwargs)
        if not self._enumerates:
            before = read_random_state() if self._enumerates is None else None
            try:
                particle = draw(nesting, self.reads, prior)
                self._enumerates = False
                return particle
            except EnumerationNeeded:  # of this model from now on, and harmless for others
                self._enumerates = True
                if before is not None:  # as if the first attempt had not been made
                    write_random_state(before)
        if not self.vectorised:
            with RandomStream(0):
                nesting = self._nesting(model, guide, args, kwargs)
        return draw(nesting, self.reads, prior, enumerate_latents=True)

    def _with_prior(
        self, particles: list[Particle], model: Any, args: Any, kwargs: Any, nesting: int | None
    ) -> list[Particle]:
        """Gives the sites of the first particle, which joined ones are made from, the prior."""
        if self.reads.prior_draws:
            prior = PriorDraws(model, args, kwargs, nesting)
            prior.check(particles[0])
            particles[0].implicit.update(
                (name, replace(site, prior=partial(prior.draw, site)))
                for name, site in particles[0].implicit.items()
            )
        return particles

    def _nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> int:
        """
        The dimensions of plates that draws, and values that are summed out, are left of.

        :raises ArgumentError: if fewer were asked for than there are: with as many draws as rows
            they would be taken for each other.
        """
        if self.max_plate_nesting == math.inf:
            return self._nestings.find(model, guide, args, kwargs)
        asked = int(self.max_plate_nesting)
        found = self._nestings.find(model, guide, args, kwargs, otherwise=asked)
        if found > asked:
            raise ArgumentError(
                f"max_plate_nesting={asked}, and model and guide have plates in "
                f"{found} dimensions. Write max_plate_nesting={found}, or leave it out: it is then "
                "found."
            )
        return asked

    # ---- copies and text

    def __getstate__(self) -> dict[str, Any]:
        # terms may be on a device that a reader lacks
        return self.__dict__ | {"last_terms": {}}

    def __repr__(self) -> str:
        return self._described(self._own_settings())

    def __str__(self) -> str:
        """What differs from the defaults alone."""
        inits = [vars(kind).get("__init__") for kind in reversed(type(self).__mro__[:-1])]
        usual = {
            one.name: one.default
            for init in inits
            if init is not None
            for one in signature(init).parameters.values()
        }
        own = self._own_settings().items()
        return self._described(
            {k: v for k, v in own if not self._is_usual(v, usual.get(k, _NO_DEFAULT))}
        )

    def _own_settings(self) -> dict[str, Any]:
        notes = ("objective", "is_bound")  # the class's name; what follows from the arguments
        return {name: value for name, value in self.settings.items() if name not in notes}

    def _described(self, settings: dict[str, Any]) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"

    def _is_usual(self, value: Any, usual: Any) -> bool:
        """Whether a setting goes without saying: its default, or the number of particles for it."""
        if usual is None:
            return value is None or value == self.num_particles
        return type(value) is type(usual) and bool(value == usual)


def _minus_sum(terms: Terms) -> Tensor:
    return -torch.stack([term.reshape(()) for term in terms.values()]).sum()
