"""The arguments of each step: the whole data, or batch after batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from pyro.infer import ELBO
from torch import Tensor
from torch.utils.data import DataLoader

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.training.batch_sizes import num_rows_of_loader, sizes_of_loader

__all__ = ["Arguments"]

Args = tuple[Any, ...]

_EXPECTED_BATCHES = (
    "something that can be gone through again and again and gives the model's arguments, such as "
    "a DataLoader or a list of tuples (x, y)"
)


_MAX_BATCHES_TO_LOOK_AT = 20  # of a list, before the first step


class Arguments:
    """
    What model and guide are called with, step by step.

    :param args: positional arguments of every step, for whole data.
    :param batches: an iterable of tuples or lists of arguments, of tensors (one argument) or of
        dictionaries (keyword arguments); gone through again and again.
    :param kwargs: keyword arguments of every step.
    :raises ArgumentError: for both, or something else.
    """

    def __init__(self, args: Args, batches: Any, kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs, self.batches = args, dict(kwargs), batches
        self._epoch: Iterator[Any] | None = None
        self._ahead: tuple[Args, dict[str, Any]] | None = None
        #: what was handed out last
        self.last: tuple[Args, dict[str, Any]] | None = None
        loader = next((i for i, a in enumerate(args) if isinstance(a, DataLoader)), None)
        if loader is not None:
            raise ArgumentError(
                f"argument {loader} of the model is a DataLoader; write batches=loader for that."
            )
        bound = next((i for i, a in enumerate(args) if isinstance(a, ELBO)), None)
        if bound is not None:
            raise ArgumentError(
                f"argument {bound} of the model is a {type(args[bound]).__name__}; write "
                "objective= for that."
            )
        if batches is None:
            return
        if args:
            raise ArgumentError(
                f"there are {len(args)} arguments for the model, and batches too: give whole data "
                "as arguments, or batches that hold all arguments."
            )
        if isinstance(batches, tuple) and batches and all(isinstance(b, Tensor) for b in batches):
            raise ArgumentError(
                f"batches is a tuple of {len(batches)} tensors, which could be the arguments of "
                "one batch. Write batches=[(x, y)] for that, and a list for batches of one "
                "argument each: batches=[x1, x2]."
            )
        refused = (str, bytes, Mapping, Tensor, np.ndarray, set, type)
        if isinstance(batches, refused) or not isinstance(batches, Iterable):
            raise ArgumentError(f"batches={shown(batches)}; expected {_EXPECTED_BATCHES}.")
        if isinstance(batches, Iterator):
            raise ArgumentError(
                f"batches is {shown(batches)}, which can be gone through once only; expected "
                f"{_EXPECTED_BATCHES}."
            )

    def next(self) -> tuple[Args, dict[str, Any]]:
        """
        The arguments of the next step.

        :returns: positional and keyword arguments.
        :raises ArgumentError: if there is no batch, or one is of another kind.
        """
        ahead, self._ahead = self._ahead, None
        self.last = self._next() if ahead is None else ahead
        return self.last

    def _next(self) -> tuple[Args, dict[str, Any]]:
        if self.batches is None:
            return self.args, self.kwargs
        return self.call(self._next_batch())

    def call(self, batch: Any) -> tuple[Args, dict[str, Any]]:
        """
        The arguments that an item of the batches stands for.

        :param batch: the item.
        :returns: positional and keyword arguments.
        :raises ArgumentError: if it is of another kind.
        :raises ShapeError: if it has no rows.
        """
        call: tuple[Args, dict[str, Any]]
        if isinstance(batch, Mapping):
            call = (), {**self.kwargs, **batch}
        elif isinstance(batch, Tensor):
            call = (batch,), self.kwargs
        elif isinstance(batch, (tuple, list)):
            call = tuple(batch), self.kwargs
        else:
            raise ArgumentError(
                f"an item of batches is {shown(batch)}; expected the arguments of the model, as a "
                "tuple, such as (x, y), a dictionary or one tensor."
            )
        number_of_rows(*call)  # which refuses none
        return call

    def peek(self) -> tuple[Args, dict[str, Any]]:
        """The arguments that :meth:`next` will return."""
        if self._ahead is None:
            self._ahead = self._next()
        return self._ahead

    def others(self) -> Iterator[tuple[Args, dict[str, Any]]]:
        """The arguments of the first batches, where they are a list of them."""
        if isinstance(self.batches, (list, tuple)):
            yield from map(self.call, self.batches[:_MAX_BATCHES_TO_LOOK_AT])

    @property
    def is_any(self) -> bool:
        """Whether the model is given anything."""
        return bool(self.args or self.kwargs) or self.batches is not None

    @property
    def num_batches(self) -> int:
        """The number of batches, 0 where there are none or they cannot be counted."""
        try:
            return 0 if self.batches is None else len(self.batches)
        except TypeError:  # an iterable without a length
            return 0

    @property
    def batch_sizes(self) -> list[int]:
        """Rows of each batch where these are the same in each epoch; empty if nobody knows."""
        batches = self.batches
        if isinstance(batches, (list, tuple)):
            sizes = [number_of_rows(*self.call(batch)) for batch in batches]
            return sizes if all(sizes) else []  # batches of dictionaries, or of numbers of rows
        return sizes_of_loader(batches)

    @property
    def num_rows(self) -> int:
        """All rows that are handed over, 0 where they cannot be counted without a pass."""
        if self.batches is None:
            return number_of_rows(self.args, self.kwargs)
        if isinstance(self.batches, (list, tuple)):
            return sum(number_of_rows(*self.call(batch)) for batch in self.batches)
        return num_rows_of_loader(self.batches)

    def _next_batch(self) -> Any:
        for _ in range(2):
            if self._epoch is None:
                self._epoch = iter(self.batches)
            for batch in self._epoch:
                return batch
            self._epoch = None
        raise ArgumentError(
            f"batches={shown(self.batches)} is empty; expected {_EXPECTED_BATCHES}."
        )
