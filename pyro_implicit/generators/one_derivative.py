"""Refuses generators a part of which is hidden from their derivative."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_implicit.exceptions import LayerError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.jacobian_route import (
    ERRORS_OF_TORCH,
    fixed_vectors,
    kind_of,
    tolerance_of,
)
from pyro_implicit.ops.twice_differentiable import TwiceDifferentiable

__all__ = ["check_one_derivative"]


def check_one_derivative(generator: Generator, like: Tensor) -> None:
    r"""
    Refuses generators whose derivatives by forward and by reverse mode are not the same.

    :param Generator generator: the generator.
    :param torch.Tensor like: a noise, for dtype and device.
    :raises LayerError: if :math:`u^\top (J v)` and :math:`(J^\top u)^\top v` differ by more than
        rounding.
    """
    for part in _without_own_products(generator.origin):
        z, u, v = fixed_vectors(part, like)
        direction = v.reshape(z.shape)
        try:
            with TwiceDifferentiable(), torch.no_grad():
                forward = torch.func.jvp(part, (z,), (direction,))[1].reshape(-1)
                pull = torch.func.vjp(part, z)[1]
                pulled = [(one, pull(one[None])[0].reshape(-1)) for one in (u, u.abs(), u**3)]
        except ERRORS_OF_TORCH:  # no rule for one of the modes: nothing to compare
            continue
        if not all(_is_same(one @ forward, back, v, tolerance_of(z)) for one, back in pulled):
            raise LayerError(
                f"the generator {kind_of(part)} has two derivatives: one by forward and one by "
                "reverse mode, so that a part of it is hidden from the latter, by torch.no_grad() "
                "or by an autograd function of one's own (a straight-through estimator, say). Let "
                "gradients go through all of it, or use an objective that needs draws alone, such "
                "as KernelDensityRatioELBO."
            )


def _without_own_products(origin: Generator) -> Iterator[Generator]:
    for part in origin.modules():
        if not isinstance(part, Generator) or type(part).linearise is not Generator.linearise:
            continue
        if not any(m._forward_hooks or m._forward_pre_hooks for m in part.modules()):
            yield part  # hooks of a user's would be shown what belongs to the derivative


def _is_same(forward: Tensor, pulled: Tensor, v: Tensor, tolerance: float) -> bool:
    """Whether both are ``u' J v``."""
    size = torch.linalg.vector_norm(pulled) * torch.linalg.vector_norm(v) + forward.abs()
    gap = (forward - pulled @ v).abs()
    return bool(gap <= tolerance * size) or not bool(gap.isfinite())
