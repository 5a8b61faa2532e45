r"""
The derivative of the log-density of what autoregressive blocks draw, at the draws.

Shape legend: see :mod:`~pyro_implicit.generators.autoregressive_map`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_implicit.generators.autoregressive_map import Kept, Layer
from pyro_implicit.ops.masked_solve import solve_transposed

__all__ = ["score_of_draws"]

_aten = torch.ops.aten


@torch.no_grad()
def score_of_draws(
    layers: Sequence[Layer], slopes: Sequence[Tensor], kept: Sequence[Kept], score: Tensor
) -> Tensor:
    r"""
    Carry the score of noises to the draws that they lead to.

    Through each layer, with the Jacobian ``J`` of its map,
    :math:`\nabla \log q(x') = J^{-\top} (\nabla \log q(x) - \nabla_x \log |\det J|)`.

    :param layers: from the first to the last.
    :param slopes: see :func:`~pyro_implicit.generators.autoregressive_map.mapped`.
    :param kept: likewise.
    :param torch.Tensor score: of the noises, shape ``(n, m)``.
    :returns: that of the draws, shape ``(n, m)``.
    """
    effects = _effects(layers, slopes, kept)
    for number, (layer, of_log_det, *parts) in enumerate(zip(layers, *effects, strict=True)):
        score = score.flip(-1) if number else score
        weights = layer.weight_out, layer.weight_hidden, layer.weight_in
        score = solve_transposed(score - of_log_det, *parts, *weights)
        score = _through_map(layer, score)
    return score


def _effects(
    layers: Sequence[Layer], slopes: Sequence[Tensor], kept: Sequence[Kept]
) -> tuple[Tensor, ...]:
    """
    Of all layers at once, what :func:`solve_transposed` needs.

    They are the derivatives of the blocks' log-determinants in their entries, ``(L, n, m)``; the
    diagonals of the blocks' derivatives, ``(L, n, m)``; how each output of a network moves its
    entry, ``(L, n, P, m)``; and the slopes of the activations, ``(L, n, h)`` each.
    """
    shapes = [one.shape for one in kept]
    slope, value, scale, bent = map(
        torch.stack,
        (slopes, *zip(*((k.value, k.scale, k.shape.bent) for k in kept), strict=True)),
    )
    gap, step, rest = (
        torch.stack(one) for one in zip(*((k.gap, k.step, k.rest) for k in kept), strict=True)
    )
    low, height, raw_rate, rate = (
        torch.stack(one)
        for one in zip(*((s.low, s.height, s.raw_rate, s.rate) for s in shapes), strict=True)
    )
    raised = 1 + slope
    by_height, by_rate = low.sigmoid(), 2 * raw_rate.sigmoid()
    rise, by_raw = height * rest, 1 - bent.square()
    of_slope = (1 / raised).unsqueeze(2)
    pull = -2 * rate.square() * step * rise * of_slope  # of the log-determinant on the argument
    of_gap = pull
    of_out = torch.cat(
        [
            torch.zeros_like(bent).unsqueeze(2),
            by_raw.unsqueeze(2),
            by_height * of_slope * rate * rest,
            -of_gap,
            by_rate * (of_slope * rise - 2 * rate * step * rise * gap * of_slope),
        ],
        2,
    )
    moved = scale.unsqueeze(2)
    effect = torch.cat(
        [
            torch.ones_like(bent).unsqueeze(2),
            (scale * value * by_raw).unsqueeze(2),
            by_height * step * moved,
            -rise * rate * moved,
            by_rate * rise * gap * moved,
        ],
        2,
    )
    weight_out, weight_hidden, weight_in = (
        torch.stack(one)
        for one in zip(
            *((la.weight_out, la.weight_hidden, la.weight_in) for la in layers), strict=True
        )
    )
    slope_hidden, slope_in = (
        _aten.silu_backward(torch.ones_like(one), one)
        for one in (
            torch.stack([s.pre_hidden for s in shapes]),
            torch.stack([s.pre_in for s in shapes]),
        )
    )
    of_hidden = of_out.flatten(2).bmm(weight_out).mul_(slope_hidden)
    of_in = of_hidden.bmm(weight_hidden).mul_(slope_in)
    of_log_det = torch.baddbmm(of_gap.sum(2), of_in, weight_in)
    return of_log_det, scale * raised, effect, slope_hidden, slope_in


def _through_map(layer: Layer, score: Tensor) -> Tensor:
    if layer.upper is None or layer.lower is None:
        return score / layer.diagonal
    upper = layer.upper + torch.diag(layer.diagonal)
    solve = torch.linalg.solve_triangular
    score = solve(upper, score, upper=True, left=False)
    solved: Tensor = solve(layer.lower, score, upper=False, left=False, unitriangular=True)
    return solved
