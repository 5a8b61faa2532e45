r"""
The map of autoregressive blocks with linear maps between them, and its determinant.

Shape legend: ``n`` noises, ``m`` entries, ``h`` hidden units, ``K`` steps, ``P = 2 + 3 K`` numbers
that shape the increasing function of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["MAX_LOG_SCALE", "Kept", "Layer", "Shape", "log_det_of", "mapped", "shape_of"]

#: log-scales stay within plus and minus this
MAX_LOG_SCALE = 4.0
#: taken from raw heights: they begin near the softplus of minus this, and a block nearly affine
_RAW_HEIGHT_OFFSET = 4.0
_MIN_RATE = 1e-3


class Layer(NamedTuple):
    """
    The tensors of one block and of the linear map after it, masks multiplied in.

    :param weight_in: ``(h, m)``.
    :param bias_in: ``(h,)``.
    :param weight_hidden: ``(h, h)``.
    :param bias_hidden: ``(h,)``.
    :param weight_out: ``(P * m, h)``.
    :param bias_out: ``(P * m,)``.
    :param diagonal: of the upper factor, positive, ``(m,)``.
    :param upper: the upper factor right of its diagonal, ``(m, m)``; None for a diagonal map.
    :param lower: the lower factor left of its ones, ``(m, m)``; None likewise.
    :param hidden: what the context adds to the first hidden layer, ``(n, h)``; None without one.
    :param direct: what it adds to all outputs, ``(n, P * m)``; None likewise.
    """

    weight_in: Tensor
    bias_in: Tensor
    weight_hidden: Tensor
    bias_hidden: Tensor
    weight_out: Tensor
    bias_out: Tensor
    diagonal: Tensor
    upper: Tensor | None = None
    lower: Tensor | None = None
    hidden: Tensor | None = None
    direct: Tensor | None = None


class Shape(NamedTuple):
    """
    What a masked network makes of the entries.

    :param pre_in: the first hidden layer before its activation, ``(n, h)``.
    :param act_in: after it.
    :param pre_hidden: the second.
    :param act_hidden: likewise.
    :param shift: ``(n, m)``.
    :param bent: the logarithm of the scale in units of its bound, ``(n, m)``.
    :param low: the heights of the steps before their softplus, ``(n, K, m)``.
    :param height: after it.
    :param centre: ``(n, K, m)``.
    :param raw_rate: the rates before their softplus.
    :param rate: after it.
    """

    pre_in: Tensor
    act_in: Tensor
    pre_hidden: Tensor
    act_hidden: Tensor
    shift: Tensor
    bent: Tensor
    low: Tensor
    height: Tensor
    centre: Tensor
    raw_rate: Tensor
    rate: Tensor


class Kept(NamedTuple):
    """
    What the derivative of a layer needs.

    :param x: its entries, ``(n, m)``.
    :param shape: of their increasing functions.
    :param gap: from the centres of the steps, ``(n, K, m)``.
    :param step: their hyperbolic tangents.
    :param rest: one minus the squares of these.
    :param value: of the increasing functions, ``(n, m)``.
    :param scale: ``(n, m)``.
    :param y: what the block makes, ``(n, m)``.
    :param mixed: that multiplied by the upper factor.
    """

    x: Tensor
    shape: Shape
    gap: Tensor
    step: Tensor
    rest: Tensor
    value: Tensor
    scale: Tensor
    y: Tensor
    mixed: Tensor


def shape_of(layer: Layer, x: Tensor) -> Shape:
    """
    Run the masked network.

    :param Layer layer: its tensors.
    :param torch.Tensor x: shape ``(n, m)``.
    :returns: what shapes the increasing function of each entry.
    """
    pre_in = F.linear(x, layer.weight_in, layer.bias_in)
    if layer.hidden is not None:
        pre_in = pre_in + layer.hidden
    act_in = F.silu(pre_in)
    pre_hidden = F.linear(act_in, layer.weight_hidden, layer.bias_hidden)
    act_hidden = F.silu(pre_hidden)
    out = F.linear(act_hidden, layer.weight_out, layer.bias_out)
    if layer.direct is not None:
        out = out + layer.direct
    n, m = x.shape
    num_steps = (out.shape[-1] // m - 2) // 3
    shift, raw_scale, steps = out.split([m, m, 3 * num_steps * m], -1)
    raw_height, centre, raw_rate = steps.view(n, 3, num_steps, m).unbind(1)
    low = raw_height - _RAW_HEIGHT_OFFSET
    rate = 2 * F.softplus(raw_rate) + _MIN_RATE
    bent = torch.tanh(raw_scale / MAX_LOG_SCALE)
    hidden = (pre_in, act_in, pre_hidden, act_hidden)
    return Shape(*hidden, shift, bent, low, F.softplus(low), centre, raw_rate, rate)


def mapped(layers: Sequence[Layer], z: Tensor) -> tuple[Tensor, list[Tensor], list[Kept]]:
    """
    Map noises, by operations that autograd and ``torch.func`` know.

    The order of the entries is reversed between two layers.

    :param layers: from the first to the last.
    :param torch.Tensor z: shape ``(n, m)``.
    :returns: the draws, shape ``(n, m)``; of each layer by how much the slopes of its increasing
        functions exceed 1, shape ``(n, m)``; and what the derivative needs.
    """
    x, slopes, kept = z, [], []
    for number, layer in enumerate(layers):
        x = x.flip(-1) if number else x
        shape = shape_of(layer, x)
        gap = x.unsqueeze(1) - shape.centre
        step = torch.tanh(shape.rate * gap)
        rest = 1 - step.square()
        value = x + (shape.height * step).sum(1)
        slopes.append((shape.height * shape.rate * rest).sum(1))
        scale = (MAX_LOG_SCALE * shape.bent).exp()
        y = torch.addcmul(shape.shift, scale, value)
        mixed = y * layer.diagonal
        if layer.upper is not None:
            mixed = torch.addmm(mixed, y, layer.upper.t())
        kept.append(Kept(x, shape, gap, step, rest, value, scale, y, mixed))
        x = mixed if layer.lower is None else torch.addmm(mixed, mixed, layer.lower.t())
    return x, slopes, kept


def log_det_of(slopes: Tensor, bents: Tensor) -> Tensor:
    """
    The logarithms of all slopes and scales together.

    :param torch.Tensor slopes: those that :func:`mapped` returns, side by side.
    :param torch.Tensor bents: of all layers, side by side, see :class:`Shape`.
    :returns: the log-determinant of the blocks, shape ``(n,)``.
    """
    return torch.add(slopes.log1p().sum(-1), bents.sum(-1), alpha=MAX_LOG_SCALE)
