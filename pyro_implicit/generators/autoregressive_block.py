"""A block in which each entry is an increasing function of itself, given the entries before it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit.ops.monotone import Steps

__all__ = ["AutoregressiveBlock"]

#: the logarithm of a scale stays within plus and minus this
_MOST_LOG_SCALE = 4.0


class AutoregressiveBlock(nn.Module):
    r"""
    A block in which each entry is an increasing function of itself.

    It is :math:`y_i = m_i + e^{s_i} f_i(x_i)`, where all numbers of entry ``i`` are functions of
    the entries before it, by one masked network (MADE, Germain et al., ICML 2015).

    :param int size: ``m``.
    :param int hidden_dim: width of the two hidden layers.
    :param int num_steps: steps of each increasing function.
    :param int context_dim: numbers beside the entries that every entry may depend on.
    """

    def __init__(
        self, size: int, hidden_dim: int, num_steps: int, context_dim: int | None = None
    ) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.num_outputs = 2 + 3 * num_steps
        position = torch.arange(1, size + 1)
        if context_dim is None:
            unit = _degrees(hidden_dim, max(size - 1, 1))
        else:  # some units see no entry, only the context
            unit = _degrees(hidden_dim, size) - 1
        self.mask_in: Tensor
        self.mask_hidden: Tensor
        self.mask_out: Tensor
        self.register_buffer("mask_in", unit[:, None] >= position, persistent=False)
        self.register_buffer("mask_hidden", unit[:, None] >= unit, persistent=False)
        self.register_buffer("mask_out", position[:, None] > unit, persistent=False)
        self.weight_in = nn.Parameter(_first_weights(self.mask_in))
        self.bias_in = nn.Parameter(torch.randn(hidden_dim))
        self.weight_hidden = nn.Parameter(_hidden_weights(self.mask_hidden))
        self.bias_hidden = nn.Parameter(torch.zeros(hidden_dim))
        spread = 0.01 / math.sqrt(hidden_dim)
        self.weight_out = nn.Parameter(spread * torch.randn(self.num_outputs, size, hidden_dim))
        bias = torch.zeros(self.num_outputs, size)
        bias[2 + num_steps : 2 + 2 * num_steps] = torch.randn(num_steps, size)
        self.bias_out = nn.Parameter(bias)
        self.weight_context: nn.Parameter | None = None
        self.weight_direct: nn.Parameter | None = None
        if context_dim is not None:
            spread = 1 / math.sqrt(context_dim)
            self.weight_context = nn.Parameter(spread * torch.randn(hidden_dim, context_dim))
            spread = 0.01 / math.sqrt(context_dim)
            shape = (self.num_outputs, size, context_dim)
            self.weight_direct = nn.Parameter(spread * torch.randn(shape))

    def parts(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Steps]:
        """
        Run the masked network.

        :param torch.Tensor x: shape ``(..., m)``.
        :param torch.Tensor context: shape ``(..., k)``, of a block that takes one.
        :returns: ``m`` and ``s``, shape ``(..., m)``, and the increasing functions.
        """
        dtype = x.dtype
        weight = self.weight_in.to(dtype) * self.mask_in
        hidden = F.linear(x, weight, self.bias_in.to(dtype))
        if context is not None and self.weight_context is not None:
            hidden = hidden + F.linear(context, self.weight_context.to(dtype))
        hidden = F.silu(hidden)
        weight = self.weight_hidden.to(dtype) * self.mask_hidden
        hidden = F.silu(F.linear(hidden, weight, self.bias_hidden.to(dtype)))
        weight = (self.weight_out.to(dtype) * self.mask_out).flatten(0, 1)
        out = F.linear(hidden, weight, self.bias_out.to(dtype).flatten())
        if context is not None and self.weight_direct is not None:
            out = out + F.linear(context, self.weight_direct.to(dtype).flatten(0, 1))
        out = out.unflatten(-1, (self.num_outputs, -1)).movedim(-2, 0)
        shift, log_scale = out[0], _MOST_LOG_SCALE * torch.tanh(out[1] / _MOST_LOG_SCALE)
        height, centre, rate = out[2:].chunk(3)
        return shift, log_scale, Steps(F.softplus(height - 4), centre, 2 * F.softplus(rate) + 1e-3)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """
        Evaluate the block.

        :param torch.Tensor x: shape ``(..., m)``.
        :param torch.Tensor context: see :meth:`parts`.
        :returns: ``y``, of the same shape.
        """
        shift, log_scale, steps = self.parts(x, context)
        return shift + log_scale.exp() * steps.value(x)

    def with_log_det(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """
        Evaluate the block and its determinant in one pass.

        :param torch.Tensor x: shape ``(..., m)``.
        :param torch.Tensor context: see :meth:`parts`.
        :returns: ``y``, and the log-determinant of its triangular Jacobian, shape ``(...)``.
        """
        shift, log_scale, steps = self.parts(x, context)
        value, slope = steps.value_and_slope(x)
        return shift + log_scale.exp() * value, (log_scale + slope.log()).sum(-1)

    @torch.no_grad()
    def inverse(self, y: Tensor, context: Tensor | None = None) -> tuple[Tensor, int]:
        """
        Find the argument of a value.

        All entries at once are found from the last guess of those before them, so that entry ``i``
        is right after ``i`` rounds at the latest.

        :param torch.Tensor y: shape ``(..., m)``.
        :param torch.Tensor context: see :meth:`parts`.
        :returns: ``x``, of the same shape, and the number of rounds.
        """
        x, count = y, 0
        while count <= y.shape[-1]:
            count += 1
            shift, log_scale, steps = self.parts(x, context)
            then = steps.inverse((y - shift) * torch.exp(-log_scale))
            close = torch.allclose(then, x, rtol=1e-13, atol=1e-13)
            x = then
            if close:
                break
        return x, count


def _first_weights(mask: Tensor) -> Tensor:
    """
    Make the first layer's weights: each unit begins as a function of nearly one entry alone.

    It is the last that the unit may see. Most latents depend on few others, and a feature of one
    entry is found sooner than one of a sum over all.
    """
    num_units = len(mask)
    seen = mask.sum(1).clamp(min=1)  # a unit that sees none has its weights masked
    weights = 0.3 * torch.randn(mask.shape) / seen.sqrt()[:, None]
    signs = 2.0 * torch.randint(2, (num_units,)) - 1
    weights[torch.arange(num_units), seen - 1] += signs * (0.7 + 0.8 * torch.rand(num_units))
    return weights


def _hidden_weights(mask: Tensor) -> Tensor:
    """Make the second layer's weights: the identity, and as much of all that a unit may see."""
    size = len(mask)
    return torch.eye(size) + 0.5 * torch.randn(size, size) / mask.sum(1).sqrt()[:, None]


def _degrees(num_units: int, most: int) -> Tensor:
    """Last entry that each hidden unit sees, spread over all that an entry may depend on."""
    if num_units >= most:
        return torch.arange(num_units) % most + 1
    return torch.linspace(1, most, num_units).round().long()
