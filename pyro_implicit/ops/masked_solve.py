r"""
Triangular systems whose matrices are the derivatives of masked networks.

The derivative of an autoregressive block is a diagonal and a strictly lower triangular matrix that
nobody forms: products with it are passes through the block's network.

Shape legend: ``n`` noises, ``m`` entries, ``h`` hidden units, ``P`` outputs of the network for each
entry.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["solve_transposed"]

#: of the last change, relative to the largest entry; the noise of a draw is a thousand times as
#: large
_RELATIVE_TOLERANCE = 1e-4
_MAX_ROUNDS = 12  # after which the matrices are formed
_ARGUMENT_NAMES = "abcdefgh"
_KEPT_LIBRARIES: list[torch.library.Library] = []


def solve_transposed(
    right: Tensor,
    diagonal: Tensor,
    effect: Tensor,
    slope_hidden: Tensor,
    slope_in: Tensor,
    weight_out: Tensor,
    weight_hidden: Tensor,
    weight_in: Tensor,
) -> Tensor:
    r"""
    Solve :math:`(D + N)^\top w = u` for each noise, with ``N`` strictly lower triangular.

    :math:`N = C\,W_{out}\,S_h\,W_h\,S_i\,W_i` is the derivative of a block through its network. All
    entries at once are found from the last guess of those after them, so that the ``i``-th from
    the end is right after ``i`` rounds at the latest. In practice all are after five, to a
    ten-thousandth of the largest; where they are not after twelve, the matrices are formed.

    :param torch.Tensor right: ``u``, shape ``(n, m)``.
    :param torch.Tensor diagonal: ``D``, positive, shape ``(n, m)``.
    :param torch.Tensor effect: ``C``, of each output of the network on its entry, ``(n, P, m)``.
    :param torch.Tensor slope_hidden: ``S_h``, of the second layer's activations, ``(n, h)``.
    :param torch.Tensor slope_in: ``S_i``, of the first one's, ``(n, h)``.
    :param torch.Tensor weight_out: ``(P * m, h)``.
    :param torch.Tensor weight_hidden: ``(h, h)``.
    :param torch.Tensor weight_in: ``(h, m)``.
    :returns: ``w``, shape ``(n, m)``.
    """
    given = right, diagonal, effect, slope_hidden, slope_in, weight_out, weight_hidden, weight_in
    found: Tensor = _operation()(*given)
    return found


@cache
def _operation() -> Any:
    """
    As one operation of torch: a recorded step has it as one, whatever its number of rounds.

    ``torch.library.custom_op`` would do it in a line, and load torch's compiler: three seconds.
    """
    with suppress(AttributeError):  # of this package, imported a second time
        return torch.ops.pyro_implicit.solve_transposed.default
    library = torch.library.Library("pyro_implicit", "FRAGMENT")
    arguments = ", ".join(f"Tensor {name}" for name in _ARGUMENT_NAMES)
    library.define(f"solve_transposed({arguments}) -> Tensor")
    library.impl("solve_transposed", _solve, "CompositeExplicitAutograd")
    library.impl("solve_transposed", _without_numbers, "Meta")  # as torch.compile asks for it
    torch.library.register_vmap("pyro_implicit::solve_transposed", _mapped, lib=library)
    _KEPT_LIBRARIES.append(library)  # with which the operation would go
    return torch.ops.pyro_implicit.solve_transposed.default


def _mapped(info: Any, in_dims: Any, *given: Any) -> tuple[Tensor, int]:
    """The rule of ``torch.vmap``: weights are those of all, and what is mapped over are noises."""
    tensors, dims = given[:5], in_dims[:5]
    if any(dim is not None for dim in in_dims[5:]):
        raise RuntimeError("weights that are mapped over")
    lead = [
        one.expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
        for one, dim in zip(tensors, dims, strict=True)
    ]
    flat = [one.reshape(-1, *one.shape[2:]) for one in lead]
    return _operation()(*flat, *given[5:]).view(lead[0].shape), 0


def _without_numbers(right: Tensor, diagonal: Tensor, *_: Tensor) -> Tensor:
    """What is like the solution, where tensors have shapes alone."""
    return (right / diagonal).contiguous()


def _solve(*given: Tensor) -> Tensor:
    right, diagonal, effect, slope_hidden, slope_in, weight_out, weight_hidden, weight_in = given
    m = right.shape[1]
    if not len(right):
        return right.clone()
    part = effect / diagonal.unsqueeze(1)  # of the unknown times its diagonal
    guess, close = right, None
    for _ in range(min(m, _MAX_ROUNDS)):
        # theory/linearised.md (score-rounds)
        through = (part * guess.unsqueeze(1)).flatten(1).mm(weight_out).mul_(slope_hidden)
        through = through.mm(weight_hidden).mul_(slope_in)
        then = torch.addmm(right, through, weight_in, alpha=-1)
        if close is None:
            close = _RELATIVE_TOLERANCE * torch.linalg.vector_norm(then, math.inf)
        step, guess = torch.dist(then, guess, math.inf), then
        if step <= close:
            return guess / diagonal
    if m <= _MAX_ROUNDS:
        return guess / diagonal
    units = torch.einsum("npj,pjh->njh", part, weight_out.view(-1, m, len(weight_hidden)))
    units = (units * slope_hidden.unsqueeze(1)) @ weight_hidden
    matrix = (units * slope_in.unsqueeze(1)) @ weight_in + torch.eye(m).to(right)
    solved = torch.linalg.solve_triangular(matrix, right.unsqueeze(1), upper=False, left=False)
    found: Tensor = solved.squeeze(1) / diagonal
    return found
