"""A generator of full rank whose exact log-determinant is cheap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.linear_maps import (
    DiagonalMap,
    LinearMap,
    default_kind,
    linear_maps,
)
from pyro_implicit.ops.activations import get_activation
from pyro_implicit.ops.det_sign import det_sign
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import is_zero, low_rank_half_log_det, upcast

__all__ = ["ResidualGenerator"]


class ResidualBlock(nn.Module):
    r"""
    A block near the identity at initialisation, with a network beside the identity.

    It is :math:`x + W_2\, \phi(W_1 x + b)`.

    :param int size: ``m``.
    :param int hidden_dim: ``h``.
    """

    def __init__(self, size: int, hidden_dim: int) -> None:
        super().__init__()
        self.weight_in = nn.Parameter(torch.randn(hidden_dim, size) / math.sqrt(size))
        self.bias_in = nn.Parameter(torch.zeros(hidden_dim))
        spread = 0.05 / math.sqrt(hidden_dim)
        self.weight_out = nn.Parameter(spread * torch.randn(size, hidden_dim))

    def weights(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Return the block's numbers in the dtype of ``like``.

        :returns: ``W_1`` (h, m), ``b`` (h,) and ``W_2`` (m, h).
        """
        dtype = like.dtype
        return self.weight_in.to(dtype), self.bias_in.to(dtype), self.weight_out.to(dtype)


class ResidualGenerator(Generator):
    r"""
    A full-rank generator with a cheap exact determinant.

    It consists of ``K`` residual blocks with linear maps between them,

    .. math::  x_0 = z, \qquad x_k = A_k\,(x_{k-1} + W_{2k}\, \phi(W_{1k} x_{k-1} + b_k)),
        \qquad g(z) = a + x_K,

    with as many noise dimensions as outputs. The Jacobian of a block is the identity plus a matrix
    of rank ``h``, so that
    :math:`\log|\det J| = \sum_k \log|\det A_k| + \log|\det(I_h + D_k W_{1k} W_{2k})|` with ``D_k``
    the slopes of :math:`\phi`: determinants of size ``h`` only, and :math:`O(K m h)` memory. No
    output noise is needed.

    It may fold, as a perceptron may: the fitted objective can then claim more than the evidence.
    Generators that cannot are :class:`~pyro_implicit.generators.BijectiveGenerator` and
    :class:`~pyro_implicit.generators.AutoregressiveGenerator`.

    :param int output_dim: outputs and noise dimensions ``m``.
    :param int hidden_dim: width ``h`` of each block.
    :param int num_blocks: ``K``.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param str mixing: the linear maps: ``"diagonal"``, ``"low-rank"`` (a diagonal and a correction
        of rank 8), ``"full"``, or ``"auto"``: diagonal for one block, else full up to 256 outputs
        and low-rank above.
    :param float init_scale: standard deviation of each output at initialisation (positive); the
        networks' part has a twentieth of it.
    :raises ArgumentError: for a width or a number of blocks below 1, an unknown activation or
        mixing, or a scale that is not positive.
    """

    full_rank = True
    has_structured_log_det = True
    #: the kinds of linear maps to choose from
    _mixings: tuple[str, ...] = ("auto", "diagonal", "low-rank", "full")

    def __init__(
        self,
        output_dim: int,
        hidden_dim: int = 50,
        *,
        num_blocks: int = 1,
        activation: str = "elu",
        mixing: str = "auto",
        init_scale: float = 1.0,
    ) -> None:
        output_dim = check_count("output_dim", output_dim)
        super().__init__((output_dim,), output_dim)
        init_scale = check_number("init_scale", init_scale, above=0)
        self.hidden_dim = check_count("hidden_dim", hidden_dim)
        self.num_blocks = check_count("num_blocks", num_blocks)
        self.activation = activation
        self._activation = get_activation(activation)
        self.mixing = check_choice("mixing", mixing, self._mixings)
        kind = self._default_kind() if mixing == "auto" else mixing
        self.shift = nn.Parameter(torch.zeros(output_dim))
        self.blocks = nn.ModuleList(self._make_block() for _ in range(num_blocks))
        self.maps = linear_maps(kind, output_dim, num_blocks, init_scale)

    def _default_kind(self) -> str:
        if self.num_blocks == 1:
            return "diagonal"
        return default_kind(self.output_dim, invertible=False)

    def _make_block(self) -> ResidualBlock:
        return ResidualBlock(self.output_dim, self.hidden_dim)

    def _parts(self, like: Tensor) -> list[tuple[tuple[Tensor, Tensor, Tensor], Any]]:
        """The numbers of each block in the dtype of ``like``, and the map that follows it."""
        pairs = zip(self.blocks, self.maps, strict=True)
        return [(block.weights(like), mix) for block, mix in pairs]  # type: ignore[operator]

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        x = z
        for (weight_in, bias, weight_out), mix in self._parts(z):
            hidden = self._activation[0](F.linear(x, weight_in, bias))
            x = mix(x + F.linear(hidden, weight_out))
        return self.shift.to(x.dtype) + x

    def _pass(self, z: Tensor) -> tuple[Tensor, list[_Step]]:
        """The value at ``z``, and each block with its slopes there."""
        function, slope = self._activation
        x, steps = z, []
        for (weight_in, bias, weight_out), mix in self._parts(z):
            before = F.linear(x, weight_in, bias)
            steps.append(_Step(weight_in, weight_out, slope(before), mix))
            x = mix(x + F.linear(function(before), weight_out))
        return self.shift.to(x.dtype) + x, steps

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        self.check_noise(z)
        jacobian = torch.eye(self.output_dim, dtype=z.dtype, device=z.device)
        for step in self._pass(z)[1]:
            inner = step.slopes[..., None] * (step.weight_in @ jacobian)
            jacobian = step.mix.columns(jacobian + step.weight_out @ inner)
        return jacobian

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        return _ResidualLinearisation(*self._pass(z))

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """
        See :meth:`Generator.half_log_det`.

        With output noise it takes :math:`O(K^2 m h^2)` where the maps are diagonal, and the whole
        Jacobian where they are not.
        """
        self.check_noise(z)
        with torch.autocast(z.device.type, enabled=False):
            if is_zero(scale):
                steps = self._pass(upcast(z))[1]
                return sum((step.log_abs_det() for step in steps), z.new_zeros(())).to(z.dtype)
            if all(isinstance(mix, DiagonalMap) for mix in self.maps):
                parts = _low_rank_parts(self._pass(upcast(z))[1])
                return low_rank_half_log_det(*parts, scale).to(z.dtype)
        return super().half_log_det(z, scale)

    def det_sign(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.det_sign`; without output noise by determinants of size ``h``."""
        if not is_zero(scale):
            return super().det_sign(z, scale)
        self.check_noise(z)
        signs = z.new_ones(z.shape[:-1])
        for step in self._pass(upcast(z))[1]:
            signs = signs * step.det_sign()
        return signs

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {
            "type": type(self).__name__,
            "output_dim": self.output_dim,
            "hidden_dim": self.hidden_dim,
            "num_blocks": self.num_blocks,
            "activation": self.activation,
            "mixing": self.mixing,
        }


class _Step:
    """One block at the noises where it was evaluated, and the map that follows it."""

    def __init__(
        self, weight_in: Tensor, weight_out: Tensor, slopes: Tensor, mix: LinearMap
    ) -> None:
        self.weight_in, self.weight_out = weight_in, weight_out
        self.slopes, self.mix = slopes, mix

    def jvp(self, v: Tensor) -> Tensor:
        inner = self.slopes * (v @ self.weight_in.mT)
        out: Tensor = self.mix(v + inner @ self.weight_out.mT)
        return out

    def vjp(self, u: Tensor) -> Tensor:
        u = self.mix.transposed(u)
        return u + (self.slopes * (u @ self.weight_out)) @ self.weight_in

    def _inner(self) -> Tensor:
        """The small matrix of the determinant lemma, shape ``(..., h, h)``."""
        product = self.weight_in @ self.weight_out
        eye = torch.eye(len(product), dtype=product.dtype, device=product.device)
        return eye + self.slopes[..., None] * product

    def log_abs_det(self) -> Tensor:
        """By the determinant lemma, shape ``(...)``."""
        inner = self._inner()
        logdet: Tensor = torch.linalg.slogdet(inner).logabsdet + self.mix.log_abs_det().to(inner)
        return logdet

    def det_sign(self) -> Tensor:
        """The sign of the block's own determinant: that of the map is the same everywhere."""
        return det_sign(self._inner())


class _ResidualLinearisation(Linearisation):
    """The derivative of residual blocks with linear maps between them."""

    def __init__(self, value: Tensor, steps: Sequence[_Step]) -> None:
        super().__init__(value, value.shape[-1])
        self._steps = list(steps)

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        for step in self._steps:
            v = step.jvp(v)
        return v

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        for step in reversed(self._steps):
            u = step.vjp(u)
        return u


def _low_rank_parts(steps: Sequence[_Step]) -> tuple[Tensor, Tensor, Tensor]:
    """
    Write the Jacobian of blocks with diagonal maps as ``diag(s) + U V``.

    :returns: ``s`` (m,), ``U`` (m, K h) and ``V`` (..., K h, m).
    """
    first = steps[0]
    diagonal = first.mix.diagonal(first.slopes)  # type: ignore[operator]
    left = diagonal[:, None] * first.weight_out
    right = first.slopes[..., None] * first.weight_in
    for step in steps[1:]:
        mix = step.mix.diagonal(step.slopes)  # type: ignore[operator]
        inner = step.slopes[..., None] * step.weight_in
        correction = inner * diagonal + (inner @ left) @ right
        left = mix[:, None] * torch.cat([left, step.weight_out], -1)
        right, diagonal = torch.cat([right, correction], -2), mix * diagonal
    return diagonal, left, right
