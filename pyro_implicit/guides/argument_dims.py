"""Arguments that are not those that a guide was built with: other dimensions, other rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_implicit.guides.members import members_of
from pyro_implicit.handlers.known_call import known_call_of
from pyro_implicit.handlers.rows.same_rows import (
    Fingerprint,
    are_alike,
    are_other_rows,
    fingerprint,
)

__all__ = [
    "Shape",
    "are_rows_of_the_fit",
    "latents_of_other_rows",
    "rows_of_first_call",
    "shapes_of_arguments",
    "warning_of_other_rows",
    "warning_of_other_shapes",
]

Shape = tuple[int, ...]


def shapes_of_arguments(args: tuple[Any, ...]) -> tuple[Shape | None, ...]:
    """
    The shapes of positional arguments.

    :param args: positional arguments.
    :returns: a shape for each; None for what is no tensor.
    """
    return tuple(tuple(one.shape) if isinstance(one, Tensor) else None for one in args)


def warning_of_other_shapes(guide: Any, args: tuple[Any, ...]) -> list[str]:
    """
    Warns of arguments whose shapes suggest a mistake that would broadcast without an error.

    These are a single row without its batch dimension, which is read as one row for each of its
    columns, and one column where there were several, or the reverse. Any other number of columns
    is accepted: sequences have any length.

    :param guide: any guide; one that is not of this package knows nothing, several know what each
        does.
    :param args: positional arguments of the model.
    :returns: a text if the guide was built with one dimension more in the first argument, and one
        if an argument with as many rows has one column, or had one.
    """
    if parts := members_of(guide):
        return list(dict.fromkeys(s for part in parts for s in warning_of_other_shapes(part, args)))
    known = known_call_of(guide)
    seen: tuple[Shape | None, ...] = () if known is None else known.shapes
    return [*filter(None, (_lost_dimension(seen, args), _other_columns(seen, args)))]


def _lost_dimension(seen: tuple[Shape | None, ...], args: tuple[Any, ...]) -> str | None:
    if not seen or not args or not isinstance(args[0], Tensor) or seen[0] is None:
        return None
    if args[0].dim() != len(seen[0]) - 1:
        return None
    return (
        f"the first argument has shape {tuple(args[0].shape)}, and had {len(seen[0])} dimensions "
        f"when the guide was built: it is read as {len(args[0]) if args[0].dim() else 1} rows. "
        "Write x[None] for one row."
    )


def _other_columns(seen: tuple[Shape | None, ...], args: tuple[Any, ...]) -> str | None:
    rows = next((shape[0] for shape in seen if shape), None)
    for i, (old, new) in enumerate(zip(seen, shapes_of_arguments(args), strict=False)):
        if old is None or new is None or len(old) != len(new) or len(old) < 2 or old[0] != rows:
            continue
        if old[-1] != new[-1] and 1 in (old[-1], new[-1]):
            return (
                f"argument {i} has shape {new}, and had {old[-1]} in its last dimension when the "
                "guide was built: torch takes one column for as many as there are to be. Hand over "
                "the columns that the guide was fitted with. All is right if the model takes any "
                "number of them."
            )
    return None


def _holds(site: Any, frame: Any, count: int) -> bool:
    """Whether a site has as many values in a plate; not if its rows are named, and it has all."""
    place = frame.dim - site.event_dim
    return bool(frame.size == count and site.shape[place:][:1] == (count,))


def warning_of_other_rows(
    guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    """
    Tells where latents of one row would be taken for those of another.

    :param guide: any guide; one that is not of this package knows nothing.
    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: a text if the guide has a latent for each of as many rows, which are others.
    """
    own, count = latents_of_other_rows(guide, args, kwargs)
    if not own:
        return []
    return [
        f"the guide has a value of {own} for each of the {count} rows that it was built with, and "
        f"these are {count} other ones, or in another order: each gets the value of the row in its "
        "place. That is right where they are the same units again. Latents of new units are "
        "unknown: predict them by a model that draws them from their prior, and a guide of the "
        "others."
    ]


def rows_of_first_call(guide: Any) -> Fingerprint | None:
    """
    Says which rows a guide was built with.

    :param guide: any guide, or chains; one that is not of this package knows nothing.
    :returns: the fingerprint of the first argument then, or None; of several guides what the first
        of them knows that knows any.
    """
    if parts := members_of(guide):
        return next((rows for rows in map(rows_of_first_call, parts) if rows is not None), None)
    known = known_call_of(guide)
    found: Fingerprint | None = getattr(known, "rows", getattr(guide, "rows_seen", None))
    return found


def are_rows_of_the_fit(guide: Any, args: tuple[Any, ...]) -> bool:
    """
    Tells whether the first argument is that of the guide's first call.

    :param guide: any guide; one that is not of this package knows nothing, and is believed.
    :param args: positional arguments of the model.
    :returns: False for other rows, for another number of them, and for another order.
    """
    if parts := members_of(guide):
        return all(are_rows_of_the_fit(part, args) for part in parts)
    seen, now = rows_of_first_call(guide), fingerprint(args)
    return seen is None or now is None or are_alike(seen, now)


def latents_of_other_rows(
    guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[str], int]:
    """
    Finds latents of one row that would be taken for those of another.

    :param guide: any guide; one that is not of this package knows nothing.
    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: names of latents with a value for each of as many rows, which are others, or the same
        in an order that no argument tells; and the number of these rows.
    """
    if parts := members_of(guide):
        found = (latents_of_other_rows(part, args, kwargs) for part in parts)
        return next((one for one in found if one[0]), ([], 0))
    seen = rows_of_first_call(guide)
    if seen is None or hasattr(guide, "read_context"):  # the latter's latents follow their rows
        return [], 0
    count: int = seen[0]
    own = [s.name for s in guide.sites if any(_holds(s, f, count) for f in s.frames)]
    if count < 2 or not own or not are_other_rows(seen, args, kwargs):
        return [], 0
    return own, count
