r"""
The derivative of the map of autoregressive blocks, written out.

Of small maps autograd takes twice the time, for the hundreds of operations on a few numbers each
that it looks after.

Shape legend: see :mod:`~pyro_implicit.generators.autoregressive_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyro_implicit.generators.autoregressive_map import Kept, Layer, log_det_of, mapped

__all__ = [
    "Gradients",
    "Passed",
    "WrittenOut",
    "is_plain_step",
    "is_step",
    "through_network",
    "through_steps",
]

_aten = torch.ops.aten
_SOFTPLUS_BETA, _SOFTPLUS_THRESHOLD = 1, 20  # the defaults of torch


class Gradients(NamedTuple):
    """
    Gradients with respect to the tensors of a layer, as if no entry of them were masked.

    They are named as those of :class:`~pyro_implicit.generators.autoregressive_map.Layer`, with the
    logarithm of the diagonal in place of that.
    """

    weight_in: Tensor
    bias_in: Tensor
    weight_hidden: Tensor
    bias_hidden: Tensor
    weight_out: Tensor
    bias_out: Tensor
    log_diagonal: Tensor
    upper: Tensor | None
    lower: Tensor | None


@dataclass
class Passed:
    """
    What a pass through the blocks left behind.

    :param layers: see :func:`~pyro_implicit.generators.autoregressive_map.mapped`.
    :param slopes: likewise.
    :param kept: likewise.
    """

    layers: Sequence[Layer] = ()
    slopes: Sequence[Tensor] = ()
    kept: Sequence[Kept] = ()


def is_step() -> bool:
    """Whether autograd takes gradients in reverse, and no transform of torch but ``vmap`` works."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not torch.is_grad_enabled():
        return False
    if forward_ad._current_level >= 0:
        return False
    at_work = torch._C._functorch.get_interpreter_stack() or ()
    return all(one.key() == torch._C._functorch.TransformType.Vmap for one in at_work)


def is_plain_step() -> bool:
    """Whether autograd takes gradients in reverse, and no transform of torch is at work."""
    return is_step() and not torch._C._are_functorch_transforms_active()


class WrittenOut(torch.autograd.Function):
    """
    Draws and log-determinants of noises, with a derivative that autograd does not record.

    Where that is to be differentiated again, it is taken once more by autograd.
    """

    @staticmethod
    def forward(
        ctx: Any, stack: Any, passed: Passed, weights: Tensor, z: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Map noises.

        :param stack: what tells the layers of weights.
        :param Passed passed: is told of the pass.
        :param torch.Tensor weights: all tensors in one, shape ``(p,)``.
        :param torch.Tensor z: shape ``(n, m)``.
        :returns: draws, shape ``(n, m)``, and log-determinants, shape ``(n,)``.
        """
        layers, shift, log_det = stack._layers(weights)
        x, slopes, kept = mapped(layers, z)
        slope = torch.cat(slopes, -1)
        bent = torch.cat([one.shape.bent for one in kept], -1)
        ctx.save_for_backward(weights, z)
        ctx.stack, ctx.layers, ctx.kept, ctx.slope = stack, layers, kept, slope
        passed.layers, passed.slopes, passed.kept = layers, slopes, kept
        return x + shift, log_det_of(slope, bent) + log_det

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> Any:
        """
        Pull cotangents back.

        :param torch.Tensor grad: of the draws, shape ``(n, m)``.
        :param torch.Tensor grad_log_det: of the log-determinants, shape ``(n,)``.
        :returns: nothing for the stack and what is told; the gradients of weights and noises where
            they are needed.
        """
        if torch.is_grad_enabled():
            return None, None, *_by_autograd(ctx, grad, grad_log_det)
        with torch.autocast(grad.device.type, enabled=False):
            return None, None, *_written_out(ctx, grad, grad_log_det)


def _by_autograd(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> list[Tensor | None]:
    inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
    asked = [one for one, need in zip(inputs, needed, strict=True) if need]
    drawn = ctx.stack._by_operations(*inputs)
    found = iter(torch.autograd.grad(drawn, asked, (grad, grad_log_det), create_graph=True))
    return [next(found) if need else None for need in needed]


def _written_out(ctx: Any, grad: Tensor, grad_log_det: Tensor) -> tuple[Tensor | None, ...]:
    _, z = ctx.saved_tensors  # an error where they were written into
    of_weights, of_noise = ctx.needs_input_grad[2:]
    of_logs = grad_log_det.unsqueeze(-1)
    of_slopes = (of_logs / (1 + ctx.slope)).split(z.shape[-1], -1)
    found, g, total = [], grad, grad_log_det.sum()
    for number in reversed(range(len(ctx.layers))):
        layer, kept = ctx.layers[number], ctx.kept[number]
        of_mixed = g if layer.lower is None else torch.addmm(g, g, layer.lower)
        of_y = of_mixed * layer.diagonal
        if layer.upper is not None:
            of_y = torch.addmm(of_y, of_mixed, layer.upper)
        of_x, of_out = through_steps(kept, of_y, of_logs, of_slopes[number])
        of_hidden, of_in = through_network(layer, kept, of_out)
        if of_weights:
            deltas = (g, of_mixed, of_out, of_hidden, of_in)
            found.append(_of_weights(layer, kept, total, *deltas))
        if number or of_noise:
            g = torch.addmm(of_x, of_in, layer.weight_in)
            g = g.flip(-1) if number else g
    flat = ctx.stack._flat(found[::-1], grad.sum(0)) if of_weights else None
    return flat, g if of_noise else None


def through_steps(
    kept: Kept, of_y: Tensor, of_logs: Tensor, of_slope: Tensor
) -> tuple[Tensor, Tensor]:
    """
    Pull cotangents back through the increasing functions of a block.

    :param Kept kept: of the block.
    :param torch.Tensor of_y: of what it makes, shape ``(n, m)``.
    :param torch.Tensor of_logs: of the logarithms of its scales, broadcasts with ``(n, m)``.
    :param torch.Tensor of_slope: of the slopes, by how much they exceed 1, shape ``(n, m)``.
    :returns: cotangents of the entries, but for what goes through the network, shape ``(n, m)``,
        and those of the network's outputs, shape ``(n, P * m)``.
    """
    shape = kept.shape
    of_value = of_y * kept.scale
    of_raw = _aten.tanh_backward(torch.addcmul(of_logs, of_value, kept.value), shape.bent)
    by_value, by_slope = of_value.unsqueeze(1), of_slope.unsqueeze(1)
    rise = shape.height * kept.rest
    rated = by_slope * shape.rate
    of_height = torch.addcmul(by_value * kept.step, rated, kept.rest)
    of_argument = torch.addcmul(by_value, rated, kept.step, value=-2) * rise
    of_gap = of_argument * shape.rate
    of_rate = torch.addcmul(of_argument * kept.gap, by_slope, rise)
    of_out = torch.cat(
        [
            of_y.unsqueeze(1),
            of_raw.unsqueeze(1),
            _aten.softplus_backward(of_height, shape.low, _SOFTPLUS_BETA, _SOFTPLUS_THRESHOLD),
            -of_gap,
            _aten.softplus_backward(
                2 * of_rate, shape.raw_rate, _SOFTPLUS_BETA, _SOFTPLUS_THRESHOLD
            ),
        ],
        1,
    )
    return of_value + of_gap.sum(1), of_out.reshape(len(of_out), of_out.shape[1] * of_out.shape[2])


def through_network(layer: Layer, kept: Kept, of_out: Tensor) -> tuple[Tensor, Tensor]:
    """
    Pull cotangents back through the network of a block.

    :param Layer layer: its tensors.
    :param Kept kept: what it kept.
    :param torch.Tensor of_out: of its outputs, shape ``(n, P * m)``.
    :returns: cotangents of the two hidden layers before their activations, from the second to the
        first, each of shape ``(n, h)``.
    """
    of_hidden = _aten.silu_backward(of_out.mm(layer.weight_out), kept.shape.pre_hidden)
    return of_hidden, _aten.silu_backward(of_hidden.mm(layer.weight_hidden), kept.shape.pre_in)


def _of_weights(
    layer: Layer,
    kept: Kept,
    total: Tensor,
    g: Tensor,
    of_mixed: Tensor,
    of_out: Tensor,
    of_hidden: Tensor,
    of_in: Tensor,
) -> Gradients:
    """The gradients of a layer's tensors from those of what it computes on its way."""
    shape = kept.shape
    return Gradients(
        weight_in=of_in.t().mm(kept.x),
        bias_in=of_in.sum(0),
        weight_hidden=of_hidden.t().mm(shape.act_in),
        bias_hidden=of_hidden.sum(0),
        weight_out=of_out.t().mm(shape.act_hidden),
        bias_out=of_out.sum(0),
        log_diagonal=torch.addcmul(total, (of_mixed * kept.y).sum(0), layer.diagonal),
        upper=None if layer.upper is None else of_mixed.t().mm(kept.y),
        lower=None if layer.lower is None else g.t().mm(kept.mixed),
    )
