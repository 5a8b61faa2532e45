"""What is said of sites that ``poutine.condition`` holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from pyro_implicit._few import few_of

__all__ = [
    "drawn_unheard",
    "listed",
    "warning_of_data_among_held",
    "warning_of_overruled",
    "warning_of_unheard",
]


def warning_of_overruled(names: Collection[str]) -> str:
    """
    Says that the guide's draws were taken for what is held.

    :param names: of sites that are held and that the guide draws.
    :returns: a text for a warning; empty without any.
    """
    if not names:
        return ""
    return (
        f"{listed(names)} are held by poutine.condition, and the guide draws them too: its draws "
        "were taken, as by Pyro's Predictive. For what another value would do write "
        f"poutine.do(model, data={{{min(names)!r}: value}}); to learn the others given this value, "
        "fit a guide to the conditioned model."
    )


def drawn_unheard(
    free: Collection[str], held: Collection[str], parents: Mapping[str, Collection[str]] | None
) -> list[str]:
    """
    Finds sites that are drawn though what is held would tell of them.

    :param free: names of sites that are drawn.
    :param held: names of those that stay where they are held.
    :param parents: names of the sites that each site depends on, or None if that cannot be told.
    :returns: names of those of the first that one of the others depends on.
    """
    above = {name for one in held for name in (parents or {}).get(one, ())}
    return sorted(set(free) & above)


def warning_of_unheard(names: Collection[str]) -> str:
    """
    Says that draws know nothing of what is held and comes after them.

    :param names: of the sites, see :func:`drawn_unheard`.
    :returns: a text for a warning; empty without any.
    """
    if not names:
        return ""
    return (
        f"{listed(names)} are drawn before values that poutine.condition holds and that depend on "
        "them: a model runs forwards, so that these draws know nothing of what is held. To draw "
        "them given it make them latents of the guide: fit one to the model that observes what is "
        "held, and does not observe them."
    )


def warning_of_data_among_held(
    held: Mapping[str, frozenset[str]],
    data: Collection[str],
    several: Collection[str],
    parents: Callable[[], Mapping[str, Collection[str]] | None],
) -> str:
    """
    Says what was taken for data, where others might be.

    Nothing is said where all that is held is alike, as one outcome, several that do not depend on
    each other, or the steps of one series.

    :param held: names of the sites, with their plates.
    :param data: names of those that were taken for data.
    :param several: names of those that have more than one number.
    :param parents: finds the names of the sites that each site depends on, or None if that cannot
        be told; asked if need be, since it takes a run of the model.
    :returns: a text for a warning; empty where nothing else was likely.
    """
    rest = sorted(held.keys() - set(data))
    plates = {held[name] for name in data if held[name]}
    unlike = len(plates) > 1 or bool(set(rest) & set(several)) or _one_is_of_another(data, parents)
    if not data or not unlike:
        return ""
    stays = listed(rest) if rest else "no others"
    return (
        f"all that the model observes is held by poutine.condition: {listed(data)} were taken for "
        f"its data, by their plates, and {stays} for values that stay. Where that is wrong pass "
        "the data as obs=y, an argument of the model, and hold the others alone."
    )


def _series(name: str) -> str:
    """What is common to the names of the steps of a series."""
    return re.sub(r"\d+", "", name)


def listed(names: Collection[str]) -> str:
    """
    Some names, of each series the first.

    :param names: of sites.
    :returns: such as ``['scale', 'y_0', 'y_1' and 7 more]``.
    """
    first = {_series(name): name for name in sorted(names, reverse=True)}
    chosen = sorted(first.values())
    rest = sorted(set(names) - set(chosen))
    return f"[{few_of([repr(name) for name in [*chosen, *rest]], most=max(6, len(chosen)))}]"


def _one_is_of_another(
    names: Collection[str], parents: Callable[[], Mapping[str, Collection[str]] | None]
) -> bool:
    """Whether a site depends on one of another name, numbers apart."""
    series = {name: _series(name) for name in names}
    if len(set(series.values())) < 2:
        return False
    found = parents()
    return found is None or any(
        series[above] != series[name]
        for name in names
        for above in series.keys() & set(found.get(name, ()))
    )
