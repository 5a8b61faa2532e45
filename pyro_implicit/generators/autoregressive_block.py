"""A block in which each entry is an increasing function of itself, given the entries before it."""

from __future__ import annotations

import math

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from pyro_implicit.generators.autoregressive_map import MAX_LOG_SCALE, Layer, mapped, shape_of
from pyro_implicit.ops.monotone import Steps

__all__ = ["block_inverse", "first_tensors", "map_inverse", "masks_of"]

_NUM_QUADRATURE_POINTS = 32  # of Gauss and Hermite


def masks_of(size: int, hidden_dim: int, has_context: bool) -> dict[str, Tensor]:
    """
    Tell which weights of a block's network there are: those of earlier entries alone.

    :param int size: ``m``.
    :param int hidden_dim: width of the two hidden layers ``h``.
    :param bool has_context: whether there is a context, which every entry may depend on.
    :returns: true where there is a weight, by layer: ``in`` ``(h, m)``, ``hidden`` ``(h, h)`` and
        ``out`` ``(m, h)``.
    """
    position = torch.arange(1, size + 1)
    if has_context:  # some units see no entry, only the context
        unit = _degrees(hidden_dim, size) - 1
    else:
        unit = _degrees(hidden_dim, max(size - 1, 1))
    return {
        "in": unit[:, None] >= position,
        "hidden": unit[:, None] >= unit,
        "out": position[:, None] > unit,
    }


def first_tensors(
    masks: dict[str, Tensor], num_steps: int, context_dim: int | None = None
) -> dict[str, Tensor]:
    r"""
    Make the tensors of a block as they are at first.

    The block is :math:`y_i = m_i + e^{s_i} f_i(x_i)`, where all numbers of entry ``i`` are
    functions of the entries before it, by one masked network (MADE, Germain et al., ICML 2015). At
    first, but for the small weights of that network, it leaves standard normal entries their mean
    and deviation, so that a guide begins as wide as the Gaussian that it starts from.

    :param masks: see :func:`masks_of`.
    :param int num_steps: steps of each increasing function.
    :param int context_dim: numbers beside the entries that every entry may depend on.
    :returns: the tensors by name.
    """
    size, hidden_dim = masks["out"].shape
    num_outputs = 2 + 3 * num_steps
    made = {
        "weight_in": _first_weights(masks["in"]),
        "bias_in": torch.randn(hidden_dim),
        "weight_hidden": _hidden_weights(masks["hidden"]),
        "bias_hidden": torch.zeros(hidden_dim),
    }
    spread = 0.01 / math.sqrt(hidden_dim)
    made["weight_out"] = spread * torch.randn(num_outputs, size, hidden_dim)
    made["bias_out"] = torch.zeros(num_outputs, size)
    made["bias_out"][2 + num_steps : 2 + 2 * num_steps] = torch.randn(num_steps, size)
    _standardise(made["bias_out"])
    if context_dim is not None:
        spread = 1 / math.sqrt(context_dim)
        made["weight_context"] = spread * torch.randn(hidden_dim, context_dim)
        shape = (num_outputs, size, context_dim)
        made["weight_direct"] = 0.01 * spread * torch.randn(shape)
    return made


def _standardise(bias: Tensor) -> None:
    """Sets shift and scale against the mean and the deviation that the steps add, in place."""
    size = bias.shape[1]
    hidden, unit = bias.new_zeros(1), bias.new_zeros(1, 1)
    weights = bias.new_zeros(1, size), hidden, unit, hidden, bias.new_zeros(bias.numel(), 1)
    layer = Layer(*weights, bias.flatten(), torch.ones(size).to(bias))
    points, parts = (
        torch.from_numpy(a).to(bias)[:, None] for a in hermegauss(_NUM_QUADRATURE_POINTS)
    )
    values, parts = mapped([layer], points.expand(-1, size))[0], parts / parts.sum()
    mean = (parts * values).sum(0)
    deviation = (parts * (values - mean).square()).sum(0).sqrt()
    bias[0] = -mean / deviation
    bias[1] = -MAX_LOG_SCALE * torch.atanh(deviation.log() / MAX_LOG_SCALE)


@torch.no_grad()
def block_inverse(layer: Layer, y: Tensor) -> tuple[Tensor, int]:
    """
    Find the argument of a block's value.

    All entries at once are found from the last guess of those before them, so that entry ``i`` is
    right after ``i`` rounds at the latest.

    :param Layer layer: the block's tensors.
    :param torch.Tensor y: shape ``(n, m)``.
    :returns: ``x``, of the same shape, and the number of rounds.
    """
    x, count = y, 0
    while count <= y.shape[-1]:
        count += 1
        shape = shape_of(layer, x)
        steps = Steps(*(one.movedim(1, 0) for one in (shape.height, shape.centre, shape.rate)))
        then = steps.inverse((y - shape.shift) * torch.exp(-MAX_LOG_SCALE * shape.bent))
        close = torch.allclose(then, x, rtol=1e-13, atol=1e-13)
        x = then
        if close:
            break
    return x, count


def map_inverse(layer: Layer, x: Tensor) -> Tensor:
    """
    Undo the linear map after a block: two triangular systems, or a division.

    :param Layer layer: its tensors.
    :param torch.Tensor x: shape ``(n, m)``.
    :returns: what the map makes ``x`` of, of the same shape.
    """
    if layer.upper is None or layer.lower is None:
        return x / layer.diagonal
    upper = layer.upper + torch.diag(layer.diagonal)
    middle = torch.linalg.solve_triangular(layer.lower, x.mT, upper=False, unitriangular=True)
    solved: Tensor = torch.linalg.solve_triangular(upper, middle, upper=True).mT
    return solved


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
