r"""
The derivative of the log-density of what autoregressive blocks draw, at the draws.

Shape legend: see :mod:`~pyro_implicit.generators.autoregressive_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.generators.autoregressive_gradient import through_network, through_steps
from pyro_implicit.generators.autoregressive_map import Kept, Layer, Shape
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
    whole, slope = _side_by_side(kept), torch.cat(tuple(slopes))
    nothing, ones = torch.zeros_like(slope), torch.ones_like(slope)
    count = len(layers)
    own = [part.chunk(count) for part in through_steps(whole, nothing, ones, 1 / (1 + slope))]
    diagonals, effects = (
        part.chunk(count) for part in through_steps(whole, ones, nothing, nothing)
    )
    for number, (layer, one) in enumerate(zip(layers, kept, strict=True)):
        score = score.flip(-1) if number else score
        _, of_in = through_network(layer, one, own[1][number])
        of_log_det = torch.addmm(own[0][number], of_in, layer.weight_in)
        pre_hidden, pre_in = one.shape.pre_hidden, one.shape.pre_in
        score = solve_transposed(
            score - of_log_det,  # theory/linearised.md (score-of-a-layer)
            diagonals[number],
            effects[number].unflatten(1, (-1, score.shape[-1])),
            _aten.silu_backward(torch.ones_like(pre_hidden), pre_hidden),
            _aten.silu_backward(torch.ones_like(pre_in), pre_in),
            layer.weight_out,
            layer.weight_hidden,
            layer.weight_in,
        )
        score = _through_map(layer, score)
    return score


def _side_by_side(kept: Sequence[Kept]) -> Kept:
    """What all layers kept as of one of ``L n`` noises: each operation costs more than numbers."""
    columns: dict[str, Any] = dict(zip(Kept._fields, zip(*kept, strict=True), strict=True))
    shapes = zip(*columns.pop("shape"), strict=True)
    whole: dict[str, Any] = {name: torch.cat(column) for name, column in columns.items()}
    return Kept(shape=Shape(*map(torch.cat, shapes)), **whole)


def _through_map(layer: Layer, score: Tensor) -> Tensor:
    if layer.upper is None or layer.lower is None:
        return score / layer.diagonal
    upper = layer.upper + torch.diag(layer.diagonal)
    solve = torch.linalg.solve_triangular
    score = solve(upper, score, upper=True, left=False)
    solved: Tensor = solve(layer.lower, score, upper=False, left=False, unitriangular=True)
    return solved
