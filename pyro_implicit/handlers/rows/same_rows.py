"""Latents of rows that are carried on to other data: told where these are other rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._signature import leading_arguments
from pyro_implicit._warn import warn

__all__ = ["Fingerprint", "SameRows", "are_alike", "are_other_rows", "fingerprint"]

#: of sums in double precision; 50 times what another number of threads changes
_RELATIVE_ROUNDING = 1e-13

#: number of rows, sum, sum of squares, and sum weighted by place
Fingerprint = tuple[int, float, float, float]


def fingerprint(args: tuple[Any, ...]) -> Fingerprint | None:
    """
    What tells the rows of the first argument from others, and their order.

    :param args: positional arguments.
    :returns: their number, the sum of all values and that of their squares, those that are NaN left
        out, and the sum weighted by the rows' places; None for no rows.
    """
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.dim() or first.is_complex():
        return None
    by_row, squares = _sums(first.detach())
    places = torch.arange(1.0, len(first) + 1, dtype=by_row.dtype, device=by_row.device)
    return first.shape[0], float(by_row.sum()), squares, float(places @ by_row)


def are_alike(one: Fingerprint, other: Fingerprint | None, near: float = 1e-9) -> bool:
    """
    Tells whether values are the same, but for the order in which a device adds them up.

    :param one: a :func:`fingerprint`.
    :param other: another one, or None.
    :param float near: what sums may differ by, in parts of the largest that they could be.
    :returns: False for None.
    """
    if other is None or one[0] != other[0]:
        return False
    most = near * math.sqrt(one[0] * max(one[2], other[2], 1e-300))
    squares = math.isclose(one[2], other[2], rel_tol=near)
    return squares and all(abs(one[i] - other[i]) <= most * one[0] ** (i // 2) for i in (1, 3))


def _sums(values: Tensor) -> tuple[Tensor, float]:
    """The sum of each row, shape ``(N,)``, and that of all squares."""
    if values.layout is torch.strided:
        wide = values.double().nan_to_num().reshape(len(values), math.prod(values.shape[1:]))
        return wide.sum(1), float(wide.square().sum())
    entries = values.to_sparse_coo().coalesce()
    held = entries.values().double().nan_to_num().reshape(entries.indices().shape[1], -1).sum(1)
    by_row = held.new_zeros(values.shape[0]).index_add(0, entries.indices()[0], held)
    return by_row, float(entries.values().double().nan_to_num().square().sum())


def are_other_rows(
    seen: Fingerprint | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """
    Tells whether a call shows as many rows as an earlier one, and not the same in their places.

    :param seen: :func:`fingerprint` of the earlier call.
    :param args: positional arguments of the call; one among them, or among ``kwargs``, may be the
        numbers of the rows, in another order, for the model's plate (``subsample=rows``).
    :param kwargs: its keyword arguments.
    :returns: False for the same rows in an order that is told.
    """
    now = fingerprint(args)
    if seen is None or now is None or now[0] != seen[0] or are_alike(now, seen, _RELATIVE_ROUNDING):
        return False
    near = 1e-9 * math.sqrt(now[0] * max(now[2], seen[2]))  # sums of standardised rows are near 0
    same = abs(now[1] - seen[1]) <= near and math.isclose(now[2], seen[2], rel_tol=1e-9)
    return not (same and any(_numbers(one, now[0]) for one in (*args, *kwargs.values())))


def _numbers(value: Any, count: int) -> bool:
    """Whether it is the numbers of ``count`` rows, in some order."""
    if not isinstance(value, Tensor) or value.shape != (count,) or value.is_floating_point():
        return False
    return torch.equal(value.sort().values, torch.arange(count, device=value.device))


class SameRows:
    """
    What a prior of latents of rows knows of the rows that its guide has seen.

    :param seen: :func:`fingerprint` of the guide's first call, or None.
    :param sites: names of the prior's sites, and the sizes of the plates around each.
    """

    def __init__(
        self, seen: Fingerprint | None, sites: Sequence[tuple[str, Sequence[int]]]
    ) -> None:
        self.seen = seen
        count = 0 if seen is None else seen[0]
        self.names = [name for name, sizes in sites if count > 1 and count in sizes]

    def restricted(self, names: Collection[str]) -> SameRows:
        """
        What is known of some sites.

        :param names: of the sites to keep.
        :returns: the same for these alone.
        """
        kept = SameRows(self.seen, ())
        kept.names = [name for name in self.names if name in names]
        return kept

    def watch(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """
        A model that warns when it is run on as many rows that are others.

        :param model: the model.
        :returns: the model, or the same with the warning.
        """
        if not self.names:
            return model

        def watched(*args: Any, **kwargs: Any) -> Any:
            if are_other_rows(self.seen, leading_arguments(model, args, kwargs), kwargs):
                self._warn()
            return model(*args, **kwargs)

        return functools.update_wrapper(watched, model, updated=())

    def _warn(self) -> None:
        assert self.seen is not None
        warn(
            f"the prior has a value of {self.names} for each of the {self.seen[0]} rows that its "
            f"guide was built with, and these are {self.seen[0]} other ones, or in another order: "
            "each gets what was learned of the row in its place. That is right where they are the "
            "same units again. For new units give these latents another name in the model, so that "
            "they keep their own prior, and carry on what all data share."
        )
