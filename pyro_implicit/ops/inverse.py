"""What the inverses of generators have in common: their result, its check and its derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_implicit.exceptions import NonFiniteError

__all__ = ["Inversion", "check_reached", "first_order", "result_dtype"]

_MAX_RELATIVE_ERROR = 1e-6  # to the values, of an inverse that is taken for exact


@dataclass(frozen=True)
class Inversion:
    """
    What leads to given values, and what it took to find it.

    :param torch.Tensor noise: the noise that leads to the given outputs, shape ``(..., d)``.
    :param int num_iterations: the largest number of iterations that any block took.
    :param float residual: the largest error that is left in a block's equation.
    """

    noise: Tensor
    num_iterations: int
    residual: float


def result_dtype(x: Tensor) -> torch.dtype:
    """
    Tells the dtype of an inverse.

    :param torch.Tensor x: the values, of any shape; whole numbers have an inverse that is not.
    :returns: that of ``x``, or torch's default for whole numbers.
    """
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


class _FirstOrder(torch.autograd.Function):
    """The identity, which refuses to be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def first_order(x: Tensor) -> Tensor:
    """
    Marks a solution whose first derivatives alone are right.

    :param torch.Tensor x: what one differentiable Newton step from the solution gives, of any
        shape.
    :returns: ``x``, of the same shape; torch raises an error where it is differentiated twice.
    """
    result: Tensor = _FirstOrder.apply(x)
    return result


@torch.no_grad()
def check_reached(rest: Tensor, goal: Tensor) -> None:
    """
    Refuses an inverse that does not lead to the values it was sought for.

    :param torch.Tensor rest: what the noise leads to, less the values, shape ``(..., m)``.
    :param torch.Tensor goal: the values, of the same shape.
    :raises NonFiniteError: where they differ by more than rounding.
    """
    if not rest.numel():
        return
    size = 1 + goal.abs().amax(-1)
    worst = float((rest.abs().amax(-1) / size).max())
    if not worst <= _MAX_RELATIVE_ERROR:
        raise NonFiniteError(
            f"the inverse was not found: the noise leads to values that are off by {worst:.2g} of "
            "their size. The map is too ill-conditioned there, or the values are far outside of "
            "what the generator draws."
        )
