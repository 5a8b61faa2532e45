"""A log-density for searches, recorded with its gradient as one graph of tensor operations."""

# Shape legend: n draws, m unconstrained latents.
from __future__ import annotations

from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.mapped.mapped_gradients import MappedGradients
from pyro_implicit.ops.graphs.recording import Function, record

__all__ = ["MAX_LATENTS_TO_RECORD", "RecordedAtDraws", "RecordedDensity"]

#: with more, what a graph saves is little beside the sums it holds
MAX_LATENTS_TO_RECORD = 1000
_RTOL_AND_ATOL = 1e-3, 1e-2  # between the density of a draw by itself and among others


class RecordedDensity:
    """
    A log-density at one point, with first derivatives alone.

    Where a model cannot be recorded, or the graph does not give the same bits, it is evaluated as
    ever.

    :param LogJoint log_joint: the density, of a model that draws nothing beside its latents.
    :param torch.Tensor example: a point with a finite density, shape ``(m,)``.
    """

    def __init__(self, log_joint: LogJoint, example: Tensor) -> None:
        self.log_joint = log_joint
        with pyro.validation_enabled(False):
            self._function = record(self._pair, example.detach()[None])

    @property
    def is_recorded(self) -> bool:
        """Whether there is a graph."""
        return self._function is not None

    def _pair(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The density ``(1,)`` and its gradient ``(1, m)`` at one point ``(1, m)``."""
        with torch.enable_grad():
            leaf = u.detach().requires_grad_(True)
            value = self.log_joint(leaf[0])
            (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach()[None], gradient

    def __call__(self, u: Tensor) -> Tensor:
        """
        Evaluates the density.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density, shape ``()``; NaN outside of its domain.
        """
        if self._function is None:
            return self.log_joint.value(u)
        values: Tensor = _WithGradients.apply(u[None], self._function)
        return values[0]


class RecordedAtDraws:
    """
    A log-density at several draws at once, with first derivatives alone.

    :param LogJoint log_joint: the density, of a model that draws nothing beside its latents.
    :param torch.Tensor example: points with a finite density, shape ``(n, m)``.
    :raises ValueError: for a model whose value at one draw is another among several.
    """

    def __init__(self, log_joint: LogJoint, example: Tensor) -> None:
        self._mapped = MappedGradients(log_joint)
        with torch.no_grad():
            alone = torch.stack([log_joint.value(u) for u in example[:2]])
        if not torch.allclose(self._pair(example)[0][:2], alone, *_RTOL_AND_ATOL):
            raise ValueError("the value at one draw is another among several")
        self._function = record(self._pair, example.detach()) or self._pair

    def _pair(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Densities ``(n,)`` and gradients ``(n, m)`` at points ``(n, m)``."""
        with pyro.validation_enabled(False), Unvalidated():
            return self._mapped(u)

    def __call__(self, u: Tensor) -> Tensor:
        """
        Evaluates the density.

        :param torch.Tensor u: shape ``(n, m)``.
        :returns: log-densities, shape ``(n,)``; some number or NaN outside of the domain.
        """
        values: Tensor = _WithGradients.apply(u, self._function)
        return values


class _WithGradients(torch.autograd.Function):
    """Values whose gradients are known as soon as they are."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, function: Function) -> Tensor:
        values, gradients = function(u.detach())
        ctx.save_for_backward(gradients)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradients,) = ctx.saved_tensors
        return grads[0][:, None] * gradients, None
