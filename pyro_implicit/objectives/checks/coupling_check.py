"""Looks once at each vectorised model whether its draws know nothing of each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger

from pyro_implicit._program_ref import ProgramRef
from pyro_implicit.handlers.observations.data_use import DataUse
from pyro_implicit.objectives.checks.argument_kind import kind_of
from pyro_implicit.objectives.checks.particle_coupling import check_particles_apart, log_prob_of
from pyro_implicit.objectives.checks.vectorised_draws import check_same_alone
from pyro_implicit.objectives.particles.particle import Particle

__all__ = ["CouplingCheck"]

#: Around a step they change nothing; under others a run by itself would be another one.
_HARMLESS_HANDLERS = (BlockMessenger, DataUse, TraceMessenger)


class CouplingCheck:
    """
    Checks a model at the first step with each combination of shapes, flags and modes.

    Shapes alone can mix draws and rows. What else a model goes by nobody sees, and so the gradients
    of the 10th, 100th, ... step are looked at, too, which takes no run of the model.
    """

    def __init__(self) -> None:
        self._model: ProgramRef | None = None
        self._passed: Counter[Any] = Counter()  # steps of each kind so far

    def __call__(self, model: Any, args: Any, kwargs: Any, particle: Particle, count: int) -> None:
        """
        Checks one vectorised pass of a model, once for each kind of arguments.

        :param model: what was run.
        :param args: its positional arguments.
        :param kwargs: its keyword arguments.
        :param Particle particle: the pass; without gradients only what it is worth is looked at.
        :param int count: its draws ``S``.
        :raises SiteError: see :func:`check_particles_apart` and :func:`check_same_alone`.
        """
        given = (*args, *kwargs.values())
        if self._model is None or not self._model.is_of(model):
            self._model, self._passed = ProgramRef(model), Counter()
        nodes = (particle.observed_nodes | particle.latent_nodes).items()
        looks_at_gradients = torch.is_grad_enabled()
        shapes = (
            looks_at_gradients,
            count,
            getattr(model, "training", None),
            *(kind_of(value) for value in given),
            *((name, node["value"].shape, log_prob_of(node).shape) for name, node in nodes),
        )
        num_steps = self._passed[shapes] + 1
        if looks_at_gradients and _is_power_of_ten(num_steps):
            check_particles_apart(particle, count)
        if num_steps == 1 and all(
            isinstance(handler, _HARMLESS_HANDLERS) for handler in _PYRO_STACK
        ):
            check_same_alone(model, args, kwargs, particle, count)
        self._passed[shapes] = num_steps  # last: what was refused is looked at again

    def __reduce__(self) -> Any:
        return CouplingCheck, ()  # weak references cannot be pickled; to check again is harmless


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"
