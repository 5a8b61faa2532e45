"""Latents of rows that are carried on to other data: told where these are other rows."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

__all__ = ["SameRows", "fingerprint"]


def fingerprint(args: tuple[Any, ...]) -> tuple[int, float, float] | None:
    """
    What tells the rows of the first argument from others.

    :param args: positional arguments.
    :returns: their number, the sum of all values and that of their squares, those that are NaN left
        out; None for no rows.
    """
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.dim() or first.is_complex():
        return None
    wide = first.detach().double().nan_to_num()
    return len(first), float(wide.sum()), float(wide.square().sum())


class SameRows:
    """
    What a prior of latents of rows knows of the rows that its guide has seen.

    :param seen: :func:`fingerprint` of the guide's first call, or None.
    :param sites: names of the prior's sites, and the sizes of the plates around each.
    """

    def __init__(
        self, seen: tuple[int, float, float] | None, sites: Sequence[tuple[str, Sequence[int]]]
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
            now = fingerprint(args)
            if now is not None and self.seen is not None and now[0] == self.seen[0]:
                if now != self.seen:
                    self._warn()
            return model(*args, **kwargs)

        return functools.update_wrapper(watched, model, updated=())

    def _warn(self) -> None:
        assert self.seen is not None
        warnings.warn(
            f"the prior has a value of {self.names} for each of the {self.seen[0]} rows that its "
            f"guide was built with, and these are {self.seen[0]} other ones: each gets what was "
            "learned of the row in its place. That is right where they are the same units again. "
            "For new units give these latents another name in the model, so that they keep their "
            "own prior, and carry on what all data share.",
            stacklevel=3,
        )
