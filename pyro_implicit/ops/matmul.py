r"""
Matrix-multiplication layers and their derivatives.

A layer maps a matrix ``X`` of shape ``(..., a, b)`` to :math:`\phi(s (U X + B_1) V + B_2)` of shape
``(..., a', b')``: left product, bias, right product, bias, activation (Shi, Sun and Zhu 2018,
Algorithm 1, with a fixed number ``s`` that sets the units of the factors). Its derivative is linear
and has no biases: :math:`dX \mapsto \phi' \odot s\, U\, dX\, V`, at the price of the two products
of a forward pass; the slopes :math:`\phi'` are kept from that pass.

References

- `Kernel Implicit Variational Inference`, J. Shi, S. Sun, J. Zhu, ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pyro_implicit.ops.activations import Activation, value_and_slope

__all__ = ["MatMulWeights", "SlopedLayer", "chain_cotangent", "chain_forward", "chain_tangent"]


@dataclass(frozen=True)
class MatMulWeights:
    """
    The weights of one matrix-multiplication layer.

    :param torch.Tensor left: ``U``, shape ``(a', a)``.
    :param torch.Tensor left_bias: ``B1``, shape ``(a', b)``.
    :param torch.Tensor right: ``V``, shape ``(b, b')``.
    :param torch.Tensor right_bias: ``B2``, shape ``(a', b')``.
    :param float scale: ``s``.
    """

    left: Tensor
    left_bias: Tensor
    right: Tensor
    right_bias: Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class SlopedLayer:
    """
    A matrix-multiplication layer at one input.

    :param torch.Tensor left: ``U``, shape ``(a', a)``.
    :param torch.Tensor right: ``V``, shape ``(b, b')``.
    :param float scale: ``s``.
    :param torch.Tensor slope: of the activation, shape ``(..., a', b')``; None if it is linear.
    """

    left: Tensor
    right: Tensor
    scale: float
    slope: Tensor | None


def chain_forward(
    layers: Sequence[MatMulWeights], activations: Sequence[Activation | None], x: Tensor
) -> tuple[Tensor, list[SlopedLayer]]:
    """
    Runs consecutive layers, and keeps what their derivatives need.

    :param layers: weights of consecutive layers.
    :param activations: one per layer, None for a linear one.
    :param torch.Tensor x: shape ``(..., a, b)``.
    :returns: the output ``(..., a', b')`` of the last layer, and every layer with its slopes.
    """
    sloped = []
    for weights, activation in zip(layers, activations, strict=True):
        scaled = weights.scale * x, weights.scale * weights.left_bias  # fewer entries than outputs
        x = (weights.left @ scaled[0] + scaled[1]) @ weights.right + weights.right_bias
        slope = None
        if activation is not None:
            x, slope = value_and_slope(activation, x)
        sloped.append(SlopedLayer(weights.left, weights.right, weights.scale, slope))
    return x, sloped


def chain_tangent(layers: Sequence[SlopedLayer], dx: Tensor) -> Tensor:
    """
    The Jacobian's product with a direction.

    :param layers: from :func:`chain_forward`.
    :param torch.Tensor dx: shape ``(P, ..., a, b)``.
    :returns: shape ``(P, ..., a', b')``.
    """
    for layer in layers:
        dx = _two_products(layer.left, layer.scale * dx, layer.right)
        if layer.slope is not None:
            dx = layer.slope * dx
    return dx


def chain_cotangent(layers: Sequence[SlopedLayer], dy: Tensor) -> Tensor:
    """
    The transposed Jacobian's product with a cotangent.

    :param layers: from :func:`chain_forward`.
    :param torch.Tensor dy: shape ``(P, ..., a', b')``.
    :returns: shape ``(P, ..., a, b)``.
    """
    for layer in reversed(layers):
        if layer.slope is not None:
            dy = layer.slope * dy
        dy = layer.scale * _two_products(layer.left.mT, dy, layer.right.mT)
    return dy


def _two_products(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """``left @ x @ right`` in the cheaper order."""
    (rows, inner), (width, columns) = left.shape, right.shape
    left_first = rows * width * (inner + columns)
    right_first = inner * columns * (width + rows)
    return (left @ x) @ right if left_first <= right_first else left @ (x @ right)
