r"""
The derivative of the log-density of what autoregressive blocks draw, at the draws.

Shape legend: see :mod:`~pyro_implicit.generators.autoregressive_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.generators.autoregressive_map import Kept, Layer
from pyro_implicit.ops.masked_solve import solve_transposed

__all__ = ["carried_score"]

_aten = torch.ops.aten


@torch.no_grad()
def carried_score(
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
    of_log_det, *parts = _derivatives(layers, slopes, kept)
    for number, layer in enumerate(layers):
        score = score.flip(-1) if number else score
        weights = layer.weight_out, layer.weight_hidden, layer.weight_in
        diagonal, effect, slope_hidden, slope_in = (part[number] for part in parts)
        right = score - of_log_det[number]  # theory/linearised.md (score-of-a-layer)
        score = solve_transposed(right, diagonal, effect, slope_hidden, slope_in, *weights)
        score = _through_map(layer, score)
    return score


def _derivatives(
    layers: Sequence[Layer], slopes: Sequence[Tensor], kept: Sequence[Kept]
) -> tuple[Tensor, ...]:
    """
    Derivatives of all blocks at once: of small maps each operation costs more than its numbers.

    :returns: those of the blocks' log-determinants in their entries, ``(L, n, m)``; the diagonals
        of the blocks' own, ``(L, n, m)``; by how much each output of a network moves its entry,
        ``(L, n, P, m)``; and the slopes of the activations, twice ``(L, n, h)``.
    """
    one = _stacked(kept, "value", "scale", "gap", "step", "rest")
    shapes = [each.shape for each in kept]
    shape = _stacked(shapes, "bent", "low", "height", "raw_rate", "rate", "pre_hidden", "pre_in")
    weight = _stacked(layers, "weight_out", "weight_hidden", "weight_in")
    raised = 1 + torch.stack(tuple(slopes))
    slope_hidden, slope_in = (
        _aten.silu_backward(torch.ones_like(pre), pre) for pre in (shape.pre_hidden, shape.pre_in)
    )
    # derivatives of an increasing function: its argument's, through each step, and the outputs'
    by_raw, by_low, by_rate = 1 - shape.bent.square(), shape.low.sigmoid(), shape.raw_rate.sigmoid()
    scale, rise = one.scale.unsqueeze(2), shape.height * one.rest
    pushed, share = rise * shape.rate, 1 / raised.unsqueeze(2)  # slope of a step; of log(raised)
    effect = _outputs(
        torch.ones_like(by_raw),
        one.scale * one.value * by_raw,
        by_low * one.step * scale,
        -pushed * scale,
        2 * by_rate * rise * one.gap * scale,
    )
    bend = -2 * shape.rate * pushed * one.step * share
    of_out = _outputs(
        torch.zeros_like(by_raw),
        by_raw,
        by_low * shape.rate * one.rest * share,
        -bend,
        2 * by_rate * (rise * share + bend * one.gap / shape.rate),
    )
    of_hidden = of_out.flatten(2).bmm(weight.weight_out) * slope_hidden
    of_in = of_hidden.bmm(weight.weight_hidden) * slope_in
    of_log_det = torch.baddbmm(bend.sum(2), of_in, weight.weight_in)
    return of_log_det, one.scale * raised, effect, slope_hidden, slope_in


def _stacked(ones: Sequence[Any], *names: str) -> SimpleNamespace:
    """Some fields of all layers, one above the other."""
    fields = {name: torch.stack([getattr(one, name) for one in ones]) for name in names}
    return SimpleNamespace(**fields)


def _outputs(
    shift: Tensor, raw_scale: Tensor, raw_height: Tensor, centre: Tensor, raw_rate: Tensor
) -> Tensor:
    """In the order of a network's outputs, ``(L, n, P, m)``."""
    parts = shift.unsqueeze(2), raw_scale.unsqueeze(2), raw_height, centre, raw_rate
    return torch.cat(parts, 2)


def _through_map(layer: Layer, score: Tensor) -> Tensor:
    if layer.upper is None or layer.lower is None:
        return score / layer.diagonal
    upper = layer.upper + torch.diag(layer.diagonal)
    solve = torch.linalg.solve_triangular
    score = solve(upper, score, upper=True, left=False)
    solved: Tensor = solve(layer.lower, score, upper=False, left=False, unitriangular=True)
    return solved
