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

import torch
from torch import Tensor

from pyro_implicit.ops.activations import Activation, value_and_slope

__all__ = [
    "MatMulWeights",
    "SlopedLayer",
    "chain_cotangent",
    "chain_forward",
    "chain_pairing",
    "chain_tangent",
    "kept_cotangent",
    "kept_tangent",
]


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


def kept_tangent(layers: Sequence[SlopedLayer], dx: Tensor) -> tuple[Tensor, list[Tensor]]:
    """
    :func:`chain_tangent`, and what :func:`chain_pairing` needs of it.

    :param layers: from :func:`chain_forward`.
    :param torch.Tensor dx: shape ``(P, ..., a, b)``.
    :returns: the product, shape ``(P, ..., a', b')``, and for each layer ``s dX V``, and ``s U dX
        V`` unless it is linear.
    """
    kept = []
    for layer in layers:
        half = (layer.scale * dx) @ layer.right
        kept.append(half)
        dx = layer.left @ half
        if layer.slope is not None:
            kept.append(dx)
            dx = layer.slope * dx
    return dx, kept


def kept_cotangent(layers: Sequence[SlopedLayer], dy: Tensor) -> tuple[Tensor, list[Tensor]]:
    """
    :func:`chain_cotangent`, and what :func:`chain_pairing` needs of it.

    :param layers: from :func:`chain_forward`.
    :param torch.Tensor dy: shape ``(P, ..., a', b')``.
    :returns: the product, shape ``(P, ..., a, b)``, and for each layer, from the last one, ``U'``
        times the cotangent of what its activation sees, and the cotangent of its input unless it is
        the first one.
    """
    kept = []
    for index, layer in reversed(list(enumerate(layers))):
        half = layer.left.mT @ (dy if layer.slope is None else layer.slope * dy)
        dy = layer.scale * (half @ layer.right.mT)
        kept += [half, dy] if index else [half]
    return dy, kept


def chain_pairing(
    layers: Sequence[SlopedLayer],
    dx: Tensor,
    dy: Tensor,
    tangents: list[Tensor],
    cotangents: list[Tensor],
) -> Tensor | float:
    """
    A number whose gradient is that of ``dy' J dx`` with respect to the layers, both held fixed.

    It is linear in weights and slopes, and its factors are the derivatives: one product for each of
    the weights, from what two passes have kept, where automatic differentiation makes the value
    first and takes two for each of its products then.

    :param layers: from :func:`chain_forward`.
    :param torch.Tensor dx: shape ``(P, ..., a, b)``.
    :param torch.Tensor dy: shape ``(P, ..., a', b')``.
    :param tangents: what :func:`kept_tangent` kept of ``dx``, shapes ``(P, ..., a, b')`` and ``(P,
        ..., a', b')`` in turns.
    :param cotangents: what :func:`kept_cotangent` kept of ``dy``, shapes ``(P, ..., a, b')`` and
        ``(P, ..., a, b)`` in turns.
    :returns: the number, summed over ``P``, shape ``(...)``; 0.0 without layers.
    """
    total: Tensor | float = 0.0
    inputs = _layer_inputs(layers, dx, tangents)
    back = iter(cotangents)
    for layer, (x, half, whole) in zip(reversed(layers), reversed(inputs), strict=True):
        of_half = next(back)
        with torch.no_grad():
            if whole is not None:
                by_slope, dy = (whole * dy).sum(0), layer.slope * dy  # type: ignore[operator]
            by_left = (dy @ half.mT).sum(0)
            by_right = (x.mT @ of_half).sum(0)
            dy = next(back, dy)
        total = total + _dot(layer.left, by_left) + _dot(layer.right, by_right)
        if layer.slope is not None:
            total = total + _dot(layer.slope, by_slope)
    return total


@torch.no_grad()
def _layer_inputs(
    layers: Sequence[SlopedLayer], dx: Tensor, tangents: list[Tensor]
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """What :func:`kept_tangent` kept, by layer: ``s dX``, ``s dX V`` and, or None, ``s U dX V``."""
    kept, inputs = iter(tangents), []
    for layer in layers:
        half = next(kept)
        whole = None if layer.slope is None else next(kept)
        inputs.append((layer.scale * dx, half, whole))
        if whole is not None:
            dx = layer.slope * whole  # type: ignore[operator]
    return inputs


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner products of matrices, ``(...)``."""
    return (a * b).sum((-2, -1))


def _two_products(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """``left @ x @ right`` in the cheaper order."""
    (rows, inner), (width, columns) = left.shape, right.shape
    left_first = rows * width * (inner + columns)
    right_first = inner * columns * (width + rows)
    return (left @ x) @ right if left_first <= right_first else left @ (x @ right)
