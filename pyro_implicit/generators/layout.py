"""
Shapes of matrix-multiplication generators from a number of latents and a parameter budget.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Appendices D and E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyro_implicit._checks import check_count, check_counts, check_instance, check_number
from pyro_implicit.exceptions import ShapeError

__all__ = [
    "Shape",
    "check_budget",
    "check_pair",
    "check_pairs",
    "count_parameters",
    "hidden_size",
    "near_square",
    "noise_side",
    "plan_branches",
    "plan_mmnn",
    "split_columns",
    "trunk_columns",
]

Shape = tuple[int, int]

#: of an automatic layout (65 x 65 noise for LeNet's 44 426 weights)
LATENTS_PER_NOISE_ENTRY = 10
#: of an automatic layout, as of Uppal et al. 2023 for millions of weights
MAX_NOISE_SIDE = 130
#: hidden rows and columns that even a small branch has, beyond its share of the budget if need be
MIN_BRANCH_SIDE = 8
#: up to here noise entries are as many as latents, and no layer loses any, whatever the budget: a
#: direction left out costs about log(1/sigma) nats, and a posterior that is far too narrow
MAX_LATENTS_WITH_FULL_NOISE = 256


def check_budget(budget: Any) -> float:
    """
    A budget of parameters for each latent as a plain float, or an error.

    :returns: ``budget`` as a plain float.
    :raises ArgumentError: unless it is a number greater than 1.
    """
    why = " (variational parameters per latent; the output's biases take 1)"
    return check_number("budget", budget, above=1, why=why)


def check_pair(name: str, value: Any) -> Shape:
    """
    The shape of one matrix as a tuple, or an error.

    :returns: a shape ``(rows, columns)``.
    :raises ArgumentError: for anything else.
    """
    rows, columns = check_counts(name, value, length=2)
    return rows, columns


def check_pairs(name: str, value: Any) -> list[Shape]:
    """
    Several shapes of matrices as tuples, or an error.

    :returns: several shapes.
    :raises ArgumentError: for anything else.
    """
    expected = "a list of shapes, such as [(20, 20)]"
    check_instance(name, value, (list, tuple), expected)
    return [check_pair(f"{name}[{i}]", entry) for i, entry in enumerate(value)]


def near_square(numel: int) -> Shape:
    """A nearly square ``(rows, columns)`` with at least ``numel`` entries, few of them spare."""
    rows = max(math.isqrt(numel), 1)
    return rows, -(-numel // rows)


def count_parameters(shapes: Sequence[Shape]) -> int:
    """Weights and biases of a chain of matrix-multiplication layers through these shapes."""
    return sum(
        a2 * a1 + a2 * b1 + b1 * b2 + a2 * b2
        for (a1, b1), (a2, b2) in zip(shapes[:-1], shapes[1:], strict=True)
    )


def noise_side(output_dim: int, room: int | None = None) -> int:
    """
    Side of the square noise of an automatic layout; full noise for up to 256 latents.

    :param int output_dim: latents.
    :param int room: as if there were only so many of them (more than 256).
    """
    if output_dim <= MAX_LATENTS_WITH_FULL_NOISE:
        return math.isqrt(output_dim - 1) + 1
    room = output_dim if room is None else room
    least = min(8, math.isqrt(room))
    return min(max(math.isqrt(room // LATENTS_PER_NOISE_ENTRY), least), MAX_NOISE_SIDE)


def hidden_size(first: Shape, last: Shape, parameters: float) -> int:
    """
    The largest ``h`` for which ``first -> (h, h) -> last`` stays within a number of parameters.

    It is at least 1.
    """
    (a, b), (rows, columns) = first, last
    linear = a + 2 * b + 2 * rows + columns
    room = parameters - rows * columns
    if room <= 0:
        return 1
    return max(int((-linear + math.sqrt(linear**2 + 4 * room)) / 2), 1)


def plan_mmnn(
    output_dim: int,
    budget: float,
    noise_shape: Shape | None = None,
    hidden_shapes: Sequence[Shape] | None = None,
    output_shape: Shape | None = None,
) -> list[Shape]:
    """
    Shapes from the noise to the output of a generator of ``output_dim`` latents.

    :param int output_dim: latents.
    :param float budget: variational parameters per latent that an automatic hidden layer may use.
        Its biases alone cost one per latent.
    :param noise_shape: by default about one noise entry for ten latents, and no side longer than
        the hidden layer's, through which the noise must pass; for up to 256 latents one each.
    :param hidden_shapes: by default one square layer as large as the budget allows, and large
        enough, beyond the budget if need be, to pass on all entries of a given noise.
    :param output_shape: by default nearly square; entries beyond ``output_dim`` are cut off.
    :raises ArgumentError: if the budget is at most 1, or a shape has no entries.
    :raises ShapeError: if ``output_shape`` is too small.
    """
    output_dim = check_count("output_dim", output_dim)
    budget = check_budget(budget)
    noise_shape = None if noise_shape is None else check_pair("noise_shape", noise_shape)
    if hidden_shapes is not None:
        hidden_shapes = check_pairs("hidden_shapes", hidden_shapes)
    if output_shape is None:
        last = near_square(output_dim)
    else:
        last = check_pair("output_shape", output_shape)
    if last[0] * last[1] < output_dim:
        raise ShapeError(
            f"output_shape {last} has {last[0] * last[1]} entries for {output_dim} latents."
        )
    wish = noise_side(output_dim)
    if hidden_shapes is not None:
        return [noise_shape or (wish, wish), *hidden_shapes, last]
    first = noise_shape or (wish, wish)
    hidden = hidden_size(first, last, budget * output_dim)
    if output_dim <= min(MAX_LATENTS_WITH_FULL_NOISE, first[0] * first[1]):
        hidden = max(hidden, *first, *last)
    if noise_shape is None:
        side = min(wish, hidden)
        first = (side, side)
        hidden = max(hidden, hidden_size(first, last, budget * output_dim))
    passed_on = min(first[0] * first[1], output_dim)
    hidden = max(hidden, math.isqrt(passed_on - 1) + 1)
    return [first, (hidden, hidden), last]


def split_columns(columns: int, sizes: Sequence[int]) -> list[int]:
    """Columns for each group: one each, the rest by the square roots of their sizes."""
    roots = [math.sqrt(size) for size in sizes]
    spare = columns - len(sizes)
    widths = [1 + int(spare * root / sum(roots)) for root in roots]
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    for index in range(columns - sum(widths)):
        widths[order[index % len(sizes)]] += 1
    return widths


def trunk_columns(first: Shape, sizes: Sequence[int]) -> int:
    """
    The number of columns of an automatic trunk with as many rows as its noise.

    It has two for each of the noise or more, and for up to 256 latents as many as each group needs
    to have an entry for each latent.

    :param first: shape of the noise.
    :param sizes: latents of each group.
    """
    columns = 2 * max(first[1], len(sizes))
    if sum(sizes) > min(MAX_LATENTS_WITH_FULL_NOISE, first[0] * first[1]):
        return columns
    while any(first[0] * w < n for w, n in zip(split_columns(columns, sizes), sizes, strict=True)):
        columns += 1
    return columns


def plan_branches(
    rows: int,
    widths: Sequence[int],
    sizes: Sequence[int],
    parameters: float,
    full: bool = False,
) -> list[list[Shape]]:
    """
    Shapes of one small generator for each group, with a hidden layer as large as its share allows.

    :param int rows: rows of their inputs.
    :param widths: columns of their inputs.
    :param sizes: latents of each group.
    :param float parameters: for all of them together, by size; what small groups need beyond their
        share, or leave, is the larger ones' loss or gain.
    :param bool full: no branch may lose a direction that it needs for its latents, whatever that
        costs.
    """
    shapes: list[list[Shape]] = [[] for _ in sizes]
    left = sum(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        first, last = (rows, widths[index]), near_square(sizes[index])
        hidden = hidden_size(first, last, parameters * sizes[index] / left)
        hidden = max(hidden, min(last[0], MIN_BRANCH_SIDE))
        if full:
            hidden = max(hidden, rows, widths[index], *last)
        shapes[index] = [first, (hidden, hidden), last]
        parameters -= count_parameters(shapes[index])
        left -= sizes[index]
    return shapes
