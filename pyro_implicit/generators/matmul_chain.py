"""Consecutive matrix-multiplication layers, the parts of matrix-multiplication generators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pyro_implicit.generators.layout import Shape
from pyro_implicit.ops.activations import Activation, get_activation
from pyro_implicit.ops.matmul import MatMulWeights, SlopedLayer, chain_forward

__all__ = ["MatMulChain", "example_noise"]


class MatMulChain(nn.Module):
    r"""
    Consecutive matrix-multiplication layers.

    The last one is linear if ``linear_end``, and its output without the bias ``gain`` times as
    large as the others' pre-activations.

    The factors of a layer from ``a x b`` are kept in units of :math:`1/\sqrt a` and
    :math:`1/\sqrt b`: entries of size 1, of any shape and for any gain, so that one learning rate
    suits them all. (Kept as they are, with a gain of 0.05, Adam changed the draws of LeNet's
    generator by several times their spread in a step of 0.006, and the fit collapsed.)
    """

    def __init__(
        self, shapes: Sequence[Shape], activation: str, linear_end: bool, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.shapes = [(int(a), int(b)) for a, b in shapes]
        self.activation = activation
        self.linear_end = linear_end
        self.gain = float(gain)
        pairs = list(zip(self.shapes[:-1], self.shapes[1:], strict=True))
        self.left = nn.ParameterList(_even(torch.randn(s[0], r[0]), 1) for r, s in pairs)
        self.left_bias = nn.ParameterList(torch.zeros(s[0], r[1]) for r, s in pairs)
        self.right = nn.ParameterList(_even(torch.randn(r[1], s[1]), 0) for r, s in pairs)
        self.right_bias = nn.ParameterList(torch.zeros(s) for _, s in pairs)

    def weights(self) -> list[MatMulWeights]:
        """The layers' weights."""
        scales = [1 / math.sqrt(a * b) for a, b in self.shapes[:-1]]
        scales[-1] *= self.gain
        parts = zip(self.left, self.left_bias, self.right, self.right_bias, scales, strict=True)
        return [MatMulWeights(*part) for part in parts]

    def _activations(self) -> list[Activation | None]:
        count = len(self.shapes) - 1 - self.linear_end
        return [get_activation(self.activation)] * count + [None] * self.linear_end

    def run(self, x: Tensor) -> tuple[Tensor, list[SlopedLayer]]:
        """Output and sloped layers at ``x``, shape ``(..., a, b)``."""
        return chain_forward(self.weights(), self._activations(), x)

    @torch.no_grad()
    def normalise(self, x: Tensor) -> Tensor:
        """
        Initialises the layers: pre-activations have standard deviation 1 at the inputs ``x``.

        That of the last layer is ``gain``. Returns the output.

        Each layer's left bias takes the mean of its inputs off. Activations have a mean that is the
        same in every draw; passed on, it would be nearly all that deep generators give.
        """
        for index, (layer, activation) in enumerate(
            zip(self.weights(), self._activations(), strict=True)
        ):
            layer.left_bias.copy_(-x.mean() * layer.left.sum(1, keepdim=True))
            x = (layer.left @ x + layer.left_bias) @ (layer.scale * layer.right)
            target = self.gain if index == len(self.left) - 1 else 1.0
            spread = x.square().mean().sqrt() / target
            factor = torch.where(spread > 1e-6, 1 / spread, 1.0)  # all units may be dead
            layer.right.mul_(factor)
            x = x * factor if activation is None else activation[0](x * factor)
        return x


def _even(matrix: Tensor, dim: int) -> Tensor:
    """
    Gives the rows (``dim=1``) or columns (``dim=0``) of a matrix the mean square 1.

    No output then starts with another spread than the next.
    """
    return matrix / matrix.square().mean(dim, keepdim=True).sqrt()


def example_noise(shape: Shape) -> Tensor:
    """
    Draws to normalise with: few where each has many entries.

    :param shape: rows and columns of the noise.
    :returns: standard normal, shape ``(draws, *shape)``.
    """
    return torch.randn(max(2, 4096 // (shape[0] * shape[1])), *shape)
