"""Row batches: the same call of a model, on a few rows of its arguments at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from pyro_implicit._checks import check_count
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.handlers.rows.row_slices import between, number_of_rows

__all__ = ["Batch", "RowBatches"]


class Batch(NamedTuple):
    """One call: which rows, and the arguments cut to them."""

    rows: slice
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RowBatches:
    """
    Cuts the arguments of a model into row batches.

    The number of rows is the first size of the first tensor argument; every tensor argument of
    that first size is cut.

    :param tuple args: positional arguments.
    :param dict kwargs: keyword arguments.
    :param int batch_size: rows per batch; ``None`` for one batch of all rows (then nothing is cut,
        and the arguments may be anything).
    :raises ArgumentError: if ``batch_size`` is not a positive integer, or nothing can be cut.
    :raises ShapeError: if there are no rows.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch_size: int | None
    ) -> None:
        self.args = args
        self.kwargs = dict(kwargs)
        self.num_rows = number_of_rows(args, self.kwargs)
        self.batch_size = self._checked(batch_size)

    def _checked(self, batch_size: int | None) -> int | None:
        """``batch_size``, or ``None`` if one batch holds all rows."""
        if batch_size is None:
            return None
        batch_size = check_count("batch_size", batch_size, why=", or None")
        if not self.num_rows:
            raise ArgumentError(
                "batch_size was given, but no argument is a tensor with rows; expected at least "
                "one (pass arrays as tensors), or leave batch_size out"
            )
        return batch_size if batch_size < self.num_rows else None

    def cut(self, start: int, stop: int) -> Batch:
        """
        Cuts the arguments of a call to some of their rows.

        :param int start: first row.
        :param int stop: end of the rows (exclusive).
        :returns: the call on these rows.
        """
        rows = slice(start, min(stop, self.num_rows))
        kwargs = {name: self.cut_one(value, rows) for name, value in self.kwargs.items()}
        return Batch(rows, tuple(self.cut_one(value, rows) for value in self.args), kwargs)

    def cut_one(self, value: Any, rows: slice) -> Any:
        """
        Cuts the rows of one argument.

        :param value: an argument of the model.
        :param slice rows: which rows.
        :returns: these rows of it, or itself if it has none.
        """
        if isinstance(value, Tensor) and value.dim() and len(value) == self.num_rows:
            start, stop, _ = rows.indices(self.num_rows)
            return between(value, start, stop)
        return value

    @cached_property
    def calls(self) -> list[Batch]:
        """The calls that show all rows; their tensors are views of the arguments."""
        if self.batch_size is None:
            return [Batch(slice(None), self.args, self.kwargs)]
        starts = range(0, self.num_rows, self.batch_size)
        return [self.cut(start, start + self.batch_size) for start in starts]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.calls)
