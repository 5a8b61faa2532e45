"""The density of many independent normal numbers, in little memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["normal_log_density"]


def normal_log_density(value: Tensor, loc: Tensor, scale: Tensor, event_dim: int) -> Tensor:
    """
    The log-density of independent normal numbers, of which nothing is kept but the numbers.

    ``torch.distributions.Normal`` keeps two tensors of their size for the derivative.

    :param torch.Tensor value: shape ``(..., *event)``.
    :param torch.Tensor loc: of a shape that broadcasts to ``(..., *event)``.
    :param torch.Tensor scale: positive; of a shape that broadcasts to ``(..., *event)``.
    :param int event_dim: how many dimensions, from the right, are summed over.
    :returns: differentiable in all three, by parameters at the price of a tensor of their numbers
        in the backward pass; shape ``(...)``.
    """
    density: Tensor = _NormalLogDensity.apply(value, _base(loc), _base(scale), event_dim)
    return density


def _base(value: Tensor) -> Tensor:
    """What an expanded tensor was expanded from, with dimensions of size 1."""
    for dim in range(value.dim()):
        if value.stride(dim) == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


class _NormalLogDensity(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, loc: Tensor, scale: Tensor, event_dim: int) -> Tensor:
        squares = _divided(value - loc, scale)
        squares.mul_(squares)
        constant = (scale.log() + 0.5 * math.log(2 * math.pi)).expand(value.shape)
        dims = list(range(-event_dim, 0))
        if not dims:
            return squares.mul_(-0.5).sub_(constant)
        return squares.sum(dims).mul_(-0.5).sub_(constant.sum(dims))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value, loc, scale, ctx.event_dim = inputs
        ctx.save_for_backward(value, loc, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, loc, scale = ctx.saved_tensors
        grad = grad[(..., *[None] * ctx.event_dim)]
        by_loc = by_scale = None
        # Under vmap no tensor says that it has gradients: this is what the parameters' need.
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            ratio = (value - loc) / scale
            by_loc = (ratio / scale * grad).sum_to_size(loc.shape)
            by_scale = ((ratio.square() - 1) / scale * grad).sum_to_size(scale.shape)
        if torch.is_grad_enabled():  # somebody differentiates again
            return (loc - value) / scale.square() * grad, by_loc, by_scale, None
        ratio = _divided(loc - value, scale.square())
        return (ratio * grad if _is_mapped() else ratio.mul_(grad)), by_loc, by_scale, None


def _divided(numbers: Tensor, by: Tensor) -> Tensor:
    return numbers / by if _is_mapped() else numbers.div_(by)


def _is_mapped() -> bool:
    """Whether one tensor may have draws that another one lacks, which cannot be written into it."""
    return bool(torch._C._are_functorch_transforms_active())
