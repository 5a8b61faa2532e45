"""Looks once at each vectorised model whether its draws know nothing of each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from pyro_implicit.objectives.alone import check_same_alone
from pyro_implicit.objectives.branches import check_no_branch
from pyro_implicit.objectives.particle import Particle
from pyro_implicit.objectives.particle_coupling import check_particles_apart, log_prob_of

__all__ = ["CouplingCheck"]


class CouplingCheck:
    """Checks a model once for each combination of shapes: shapes alone can mix draws and rows."""

    def __init__(self) -> None:
        self._model: Callable[[], Any] | None = None
        self._passed: set[Any] = set()

    def __call__(self, program: tuple[Any, Any, Any, Any], particle: Particle, count: int) -> None:
        """
        Checks one vectorised pass of a model, once for each kind of arguments.

        :param program: model, guide, and positional and keyword arguments of both.
        :param Particle particle: the pass, made with gradients.
        :param int count: its draws ``S``.
        :raises SiteError: see :func:`check_particles_apart`, and the checks of
            :mod:`~pyro_implicit.objectives.branches` and :mod:`~pyro_implicit.objectives.alone`.
        """
        model, _, args, kwargs = program
        given = (*args, *kwargs.values())
        anchor = getattr(model, "__func__", model)  # a bound method is a new object at each look
        if self._model is None or self._model() is not anchor:
            self._model, self._passed = weakref.ref(anchor), set()
        nodes = (particle.observed_nodes | particle.latent_nodes).items()
        shapes = (
            count,
            *(getattr(value, "shape", None) for value in given),
            *((name, node["value"].shape, log_prob_of(node).shape) for name, node in nodes),
        )
        if shapes not in self._passed:
            check_particles_apart(particle, count)
            check_no_branch(*program)
            check_same_alone(*program, particle, count)
            self._passed.add(shapes)

    def __reduce__(self) -> Any:
        return CouplingCheck, ()  # weak references cannot be pickled; to check again is harmless
