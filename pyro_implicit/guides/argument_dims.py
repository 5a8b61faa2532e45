"""Arguments that are not those that a guide was built with: a lost dimension, other rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_implicit.handlers.same_rows import are_other_rows

__all__ = [
    "dims_of_arguments",
    "latents_of_other_rows",
    "warn_of_lost_dimension",
    "warn_of_other_rows",
]


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


def warn_of_other_rows(guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """
    Warns, for the caller's caller, where latents of one row would be taken for those of another.

    :param guide: any guide; one that was loaded, or is not of this package, knows nothing.
    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :warns UserWarning: if the guide has a latent for each of as many rows, which are others.
    """
    own, count = latents_of_other_rows(guide, args, kwargs)
    if not own:
        return
    warnings.warn(
        f"the guide has a value of {own} for each of the {count} rows that it was built with, and "
        f"these are {count} other ones, or in another order: each gets the value of the row in its "
        "place. That is right where they are the same units again. Latents of new units are "
        "unknown: predict them by a model that draws them from their prior, and a guide of the "
        "others.",
        stacklevel=3,
    )


def latents_of_other_rows(
    guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[str], int]:
    """
    Finds latents of one row that would be taken for those of another.

    :param guide: any guide; one that was loaded, or is not of this package, knows nothing.
    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: names of latents with a value for each of as many rows, which are others, or the same
        in an order that no argument tells; and the number of these rows.
    """
    seen = getattr(guide, "_rows_seen", None)
    if seen is None or hasattr(guide, "read_context"):  # the latter's latents follow their rows
        return [], 0
    count: int = seen[0]
    own = [s.name for s in guide.sites if any(f.size == count for f in s.frames)]
    if count < 2 or not own or not are_other_rows(seen, args, kwargs):
        return [], 0
    return own, count
