"""Values of rows that ``poutine.condition`` holds: those of the rows that plates show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import ShapeError
from pyro_implicit.handlers.rows.latent_rows import ShownRows
from pyro_implicit.handlers.rows.row_slices import are_same_numbers

__all__ = ["held_at_rows", "in_another_order"]


def held_at_rows(
    site: Any, value: Tensor, shown: ShownRows, start: int = 0, total: int = 0
) -> tuple[Tensor, bool]:
    """
    Cuts what is held to the rows that plates show.

    A value for each row of a plate that shows some of them is cut by their numbers, one for each
    row of the arguments as these are. Any other stays as it is.

    :param site: the sample site.
    :param torch.Tensor value: where it is held, of the shape of the site or one that broadcasts to
        it, on the rows of its plates, all rows of the arguments or those shown.
    :param ShownRows shown: the rows that plates show.
    :param int start: the first row of the arguments, if they are cut.
    :param int total: how many these are in all; 0 if they are not cut.
    :returns: the value at these rows, of the same shape but for them, and whether its own order
        cannot be told: where a plate shows all of its rows in another one, values may be in that of
        its numbers or of the arguments.
    """
    unclear = False
    for frame in site["cond_indep_stack"]:
        dim = frame.dim - site["fn"].event_dim if frame.vectorized else 0
        if not frame.vectorized or -value.dim() > dim or value.shape[dim] == 1:
            continue
        size, full = value.shape[dim], getattr(frame, "full_size", None) or frame.size
        if size == full:
            unclear |= (total or frame.size) == full and not _in_order(
                shown.rows.get(frame.name), start, frame.size
            )
            if size != frame.size:
                value = shown.cut(site["name"], value, frame, dim)
        elif size == total and frame.size < size:
            value = value.narrow(dim, start, frame.size)
    return value, unclear


def _in_order(rows: Any, start: int, count: int) -> bool:
    """Whether the rows that a plate shows follow each other as those of the arguments do."""
    return rows is None or are_same_numbers(rows, torch.arange(start, start + count))


def in_another_order(names: Iterable[str]) -> ShapeError:
    """
    Says that nobody can tell which rows values that are held belong to.

    :param names: of the sites.
    :returns: the error to raise.
    """
    return ShapeError(
        f"{sorted(names)} are held by poutine.condition at a value for each row, and the plate "
        "shows all rows in another order than that of their numbers: the values may be in either. "
        "Pass them in order (numbers rising from 0), or some of them, which are found by number."
    )
