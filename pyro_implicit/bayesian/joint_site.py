"""A site of a joint prior: its values, and how they lie on the real line."""

# Shape legend: n unconstrained entries, P shape of the site.
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints

__all__ = ["JointSite"]


@dataclass(frozen=True)
class JointSite:
    """
    A site of a joint prior.

    :param str name: its name in the model.
    :param torch.Size shape: of a constrained value.
    :param int event_dim: number of its event dimensions.
    :param support: of a value.
    """

    name: str
    shape: torch.Size
    event_dim: int
    support: constraints.Constraint

    @cached_property
    def transform(self) -> Transform | None:
        """The bijection from the real line to the support; None for the real line itself."""
        inner: Any = self.support
        while isinstance(inner, constraints.independent):
            inner = inner.base_constraint
        return None if inner is constraints.real else biject_to(self.support)

    @cached_property
    def unconstrained_shape(self) -> torch.Size:
        """Shape of an unconstrained value."""
        if self.transform is None:
            return self.shape
        return torch.Size(self.transform.inverse_shape(self.shape))

    @property
    def numel(self) -> int:
        """Number of unconstrained entries."""
        return self.unconstrained_shape.numel()

    def flat(self, value: Tensor) -> Tensor:
        """
        Maps values to the real line.

        :param torch.Tensor value: shape ``(*batch, *P)``.
        :returns: shape ``(*batch, n)``.
        """
        u = value if self.transform is None else self.transform.inv(value)
        return u.reshape(*value.shape[: value.dim() - len(self.shape)], self.numel)
