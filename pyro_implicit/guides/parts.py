"""Which latents share a generator: all, those of a layer, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from pyro_implicit.exceptions import ArgumentError, SiteError

__all__ = ["Factorized", "check_factorized", "check_parts", "divide", "parts_of"]

#: False, True, ``"layer"``, or a function from a site's name to its part's
Factorized: TypeAlias = bool | str | Callable[[str], str]
_T = TypeVar("_T")


def check_factorized(factorized: Factorized) -> None:
    """
    Checks the argument ``factorized`` of a guide.

    :raises ArgumentError: for anything that is not a :data:`Factorized`.
    """
    if not (isinstance(factorized, bool) or _is_layer(factorized) or callable(factorized)):
        raise ArgumentError(
            f"factorized={factorized!r}; expected False (one generator for all latents), True (one "
            "for each site), 'layer' (one for the parameters of each layer), or a function from a "
            "site's name to the name of its part."
        )


def _is_layer(factorized: object) -> bool:
    return isinstance(factorized, str) and factorized == "layer"


def parts_of(factorized: Factorized, names: Sequence[str]) -> dict[str, list[int]]:
    """
    Divides the latent sites into parts with a generator each.

    :param factorized: how the latents are divided.
    :param names: names of the sites.
    :returns: by name of the part (``""`` for the only one) the positions of its sites, parts in the
        order of their first site.
    :raises ArgumentError: if the function returns something else than a string.
    """
    if factorized is False:
        return {"": list(range(len(names)))}
    parts: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        part = name
        if _is_layer(factorized):
            part = name.rpartition(".")[0] or name
        elif callable(factorized):
            part = factorized(name)
        if not isinstance(part, str):
            raise ArgumentError(
                f"factorized({name!r}) returned {part!r}; expected the name of a part, a string."
            )
        parts.setdefault(part, []).append(position)
    return parts


def check_parts(sizes: Mapping[str, int]) -> None:
    """
    Checks that each part has latents to make.

    :param sizes: numbers of the latents of a part, by its name.
    :raises SiteError: for a part without any.
    """
    empty = next((name for name, size in sizes.items() if not size), None)
    if empty is None:
        return
    which = f"of part {empty!r} " if empty else ""
    raise SiteError(
        f"the latents {which}have no numbers: a shape such as (0,). Leave them out of the model "
        "where they are empty: if size: pyro.sample(...)."
    )


def divide(items: Sequence[_T], sizes: Sequence[int]) -> list[list[_T]]:
    """Consecutive pieces of ``items`` of these sizes."""
    rest = iter(items)
    return [[next(rest) for _ in range(size)] for size in sizes]
