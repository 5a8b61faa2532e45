"""One row that has lost its dimension."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

__all__ = ["dims_of_arguments", "warn_of_lost_dimension"]


def dims_of_arguments(args: tuple[Any, ...]) -> tuple[int | None, ...]:
    """
    The numbers of dimensions of positional arguments.

    :param args: positional arguments.
    :returns: a number for each; None for what is no tensor.
    """
    return tuple(one.dim() if isinstance(one, Tensor) else None for one in args)


def warn_of_lost_dimension(guide: Any, args: tuple[Any, ...]) -> None:
    """
    Warns, for the caller's caller, of a first argument with one dimension less than at the start.

    A model takes one row without its dimension for as many rows as it has columns.

    :param guide: any guide; one that was loaded, or is not of this package, knows nothing.
    :param args: positional arguments of the model.
    :warns UserWarning: if the guide was built with one dimension more.
    """
    seen = getattr(guide, "_argument_dims", ())
    if not seen or not args or not isinstance(args[0], Tensor) or seen[0] is None:
        return
    if args[0].dim() != seen[0] - 1:
        return
    warnings.warn(
        f"the first argument has shape {tuple(args[0].shape)}, and had {seen[0]} dimensions when "
        f"the guide was built: it is read as {len(args[0]) if args[0].dim() else 1} rows. Write "
        "x[None] for one row.",
        stacklevel=3,
    )
