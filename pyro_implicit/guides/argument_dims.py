"""One row that has lost its dimension."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["dims_of_arguments", "lost_dimension"]


def dims_of_arguments(args: tuple[Any, ...]) -> tuple[int | None, ...]:
    """
    The numbers of dimensions of positional arguments.

    :param args: positional arguments.
    :returns: a number for each; None for what is no tensor.
    """
    return tuple(one.dim() if isinstance(one, Tensor) else None for one in args)


def lost_dimension(guide: Any, args: tuple[Any, ...]) -> str | None:
    """
    Says of a first argument that it has one dimension less than when the guide was built.

    A model takes one row without its dimension for as many rows as it has columns.

    :param guide: any guide; one that was loaded, or is not of this package, knows nothing.
    :param args: positional arguments of the model.
    :returns: what to say; None if there is nothing to say.
    """
    seen = getattr(guide, "_argument_dims", ())
    if not seen or not args or not isinstance(args[0], Tensor) or seen[0] is None:
        return None
    if args[0].dim() != seen[0] - 1:
        return None
    return (
        f"the first argument has shape {tuple(args[0].shape)}, and had {seen[0]} dimensions when "
        f"the guide was built: it is read as {len(args[0]) if args[0].dim() else 1} rows. Write "
        "x[None] for one row."
    )
