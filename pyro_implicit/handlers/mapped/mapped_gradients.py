"""A log-density and its gradients at several points in one run of the model."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.mapped.mapped_writing import WritingMap

__all__ = ["MappedGradients"]


class MappedGradients:
    """
    Log-densities and gradients at ``n`` unconstrained points, by ``torch.func.vmap`` of the model.

    It raises what torch raises where the model cannot be mapped, and does not tell whether a point
    has among others the value that it has by itself.

    :param LogJoint log_joint: the density, of a model that draws nothing beside its latents.
    """

    def __init__(self, log_joint: LogJoint) -> None:
        self.log_joint, self._map = log_joint, WritingMap()

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """
        Evaluates the density.

        :param torch.Tensor u: shape ``(n, m)``.
        :returns: log-densities, shape ``(n,)``, and gradients, ``(n, m)``.
        """
        with torch.enable_grad():
            leaf = u.detach().requires_grad_(True)
            values = self._map(self.log_joint, leaf)
            (gradients,) = torch.autograd.grad(values.sum(), leaf)
        return values.detach(), gradients
