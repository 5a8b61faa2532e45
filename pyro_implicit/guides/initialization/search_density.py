"""The log-density that a search for a start is led by: exact at a point, quick on the way."""

# Shape legend: n draws, m unconstrained latents.
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.ascent import ascend
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.guides.initialization.lbfgs import maximise
from pyro_implicit.guides.initialization.mean_field import MeanField
from pyro_implicit.guides.initialization.recorded_density import (
    MAX_LATENTS_TO_RECORD,
    RecordedAtDraws,
    RecordedDensity,
)
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.mapped.mapped_density import MappedDensity

__all__ = ["SearchDensity"]

_Density = Callable[[Tensor], Tensor]
#: relative and absolute, within which a value by the graph is the model's own
_GRAPH_VALUE_TOLERANCES = 1e-3, 1e-2


class SearchDensity:
    """
    A log-density, NaN outside of its domain, with what searches ask of it again and again.

    A model of up to a thousand latents is recorded for first derivatives. Its graph does not know
    where distributions refuse a value: what a search found by it is looked at by the model itself,
    and sought again by that if they differ.

    :param LogJoint log_joint: the density, of a model that draws nothing beside its latents.
    :param bar: a progress bar, or None.
    """

    def __init__(self, log_joint: LogJoint, bar: Any = None) -> None:
        self.log_joint = log_joint
        self._bar = bar
        self._recorded: RecordedDensity | None = None
        self._mapped = MappedDensity(log_joint)
        #: gradients so far
        self.num_gradients = 0

    def __call__(self, u: Tensor) -> Tensor:
        """
        Evaluates the density by a run of the model.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density or NaN, twice differentiable, shape ``()``.
        """
        self._note(torch.is_grad_enabled())
        return self.log_joint.value(u)

    def at_draws(self, draws: Tensor) -> Tensor:
        """
        Evaluates it at many draws, as exactly as the model can tell.

        A search may have followed rounding: where large terms cancel, single precision knows the
        density to some nats.

        :param torch.Tensor draws: shape ``(n, m)``.
        :returns: shape ``(n,)``.
        """
        self._note(0)
        return self._mapped(draws)

    @property
    def most_at_once(self) -> int:
        """Draws in one run of the model, once :meth:`at_draws` was asked; 0 for one by one."""
        return self._mapped.most

    def mapped(self, draws: Tensor) -> Tensor:
        """
        Evaluates it at many draws by such runs alone.

        :param torch.Tensor draws: shape ``(n, m)``.
        :returns: shape ``(n,)``, NaN where a run has no density.
        """
        self._note(0)
        return self._mapped.mapped(draws)

    def quick(self, u: Tensor) -> Tensor:
        """
        Evaluates it for a first derivative alone, by the graph if there is one.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density, or, without a graph, NaN outside of its domain; shape ``()``.
        """
        if self._recorded is None:
            return self(u)
        self._note(torch.is_grad_enabled())
        return self._recorded(u)

    def record(self, example: Tensor) -> bool:
        """
        Records the density, unless that has been tried.

        :param torch.Tensor example: a point with a finite density, shape ``(m,)``.
        :returns: whether there is a graph.
        """
        if self._recorded is None and example.numel() <= MAX_LATENTS_TO_RECORD:
            self._recorded = RecordedDensity(self.log_joint, example)
        return self._recorded is not None and self._recorded.is_recorded

    def ascend(self, start: Tensor, num_steps: int) -> tuple[Tensor, float]:
        """
        :func:`~pyro_implicit.guides.initialization.ascent.ascend` on this density.

        :param torch.Tensor start: shape ``(m,)``.
        :param int num_steps: number of gradients.
        :returns: the best point, shape ``(m,)``, and the density there.
        """
        if self._has_graph(start):
            point, value = ascend(self.quick, start, num_steps)
            if self._is(point, value):
                return point, value
        return ascend(self, start, num_steps)

    def maximise(self, start: Tensor, num_steps: int) -> tuple[Tensor, float]:
        """
        :func:`~pyro_implicit.guides.initialization.lbfgs.maximise` on this density.

        :param torch.Tensor start: shape ``(m,)``.
        :param int num_steps: most steps.
        :returns: the best point, shape ``(m,)``, and the gain over ``start``.
        """
        if self._has_graph(start):
            point, gain = maximise(self.quick, start, num_steps)
            if self._is(point, float(self._value(start)) + gain):
                return point, gain
        return maximise(self, start, num_steps)

    def mean_field(
        self, example: Tensor, fit: Callable[[_Density], MeanField], num_samples: int = 16
    ) -> MeanField:
        """
        Fits a diagonal Gaussian.

        :param torch.Tensor example: a point with a finite density, shape ``(m,)``.
        :param fit: a function of the density.
        :param int num_samples: draws by which it is judged where a fit to the graph ended.
        :returns: the Gaussian.
        """
        if self.record(example):
            found = fit(self.quick)
            if math.isfinite(objective(self, found.loc, found.scale, num_samples)):
                return found
        return fit(self)

    def recorded_at_draws(self, example: Tensor) -> _Density:
        """
        Records the density of several draws at once for a first derivative alone.

        :param torch.Tensor example: as many as there will be, shape ``(n, m)``.
        :returns: a function from draws ``(n, m)`` to log-densities ``(n,)``.
        :raises ValueError: for a model whose value at one draw is another among several.
        """
        recorded = RecordedAtDraws(self.log_joint, example)

        def density(draws: Tensor) -> Tensor:
            self._note(torch.is_grad_enabled())
            return recorded(draws)

        return density

    def _note(self, num_gradients: int) -> None:
        self.num_gradients += num_gradients
        if self._bar is not None:
            self._bar.update()

    @torch.no_grad()
    def _value(self, u: Tensor) -> Tensor:
        return self(u.detach())

    def _has_graph(self, start: Tensor) -> bool:
        if self._recorded is None and start.numel() <= MAX_LATENTS_TO_RECORD:
            return bool(self._value(start).isfinite()) and self.record(start)
        return self._recorded is not None and self._recorded.is_recorded

    def _is(self, u: Tensor, value: float) -> bool:
        """Whether the model has this value at a point."""
        found = float(self._value(u))
        relative, absolute = _GRAPH_VALUE_TOLERANCES
        return math.isclose(found, value, rel_tol=relative, abs_tol=absolute)
