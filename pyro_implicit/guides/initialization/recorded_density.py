"""A log-density for searches, recorded with its gradient as one graph of tensor operations."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.ops.graphs.recording import Function, record

__all__ = ["MAX_LATENTS_TO_RECORD", "RecordedDensity"]

#: with more, what a graph saves is little beside the sums it holds
MAX_LATENTS_TO_RECORD = 1000


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
        value: Tensor = _WithGradient.apply(u, self._function)
        return value


class _WithGradient(torch.autograd.Function):
    """A value whose gradient is known as soon as it is."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, function: Function) -> Tensor:
        value, gradient = function(u.detach()[None])
        ctx.save_for_backward(gradient[0])
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return grads[0] * gradient, None
