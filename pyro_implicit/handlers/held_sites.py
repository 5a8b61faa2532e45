"""Sites that ``poutine.condition`` holds at a value, beside those that a model observes itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.util import site_is_subsample

from pyro_implicit._few import few_of
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.choice_for_all import plates_of
from pyro_implicit.handlers.held_rows import held_at_rows, in_another_order
from pyro_implicit.handlers.latent_rows import ShownRows

__all__ = [
    "HeldSites",
    "data_among_held",
    "drawn_unheard",
    "is_held",
    "refuse_condition_around",
    "told_of_data_among_held",
    "told_of_overruled",
    "told_of_unheard",
]


class HeldSites(Messenger):
    """
    Notes the sites that are held, of models that are run within.

    What is held as a number, or an array, is a tensor for all that comes after, and what is held
    for each row of a plate has the rows that it shows, see
    :func:`~pyro_implicit.handlers.held_rows.held_at_rows`.

    :param drawn: names of the latents that a guide draws, whose values come instead.
    :param int start: the first row of the arguments, if they are cut.
    :param int total: how many these are in all; 0 if they are not cut.
    :ivar dict sites: names of the others, with their plates.
    :ivar set several: names of those of them that have more than one number.
    :ivar set overruled: names of those that the guide draws.
    :ivar set unclear: names of those of which nobody can tell which rows their values belong to.
    """

    def __init__(self, drawn: Collection[str] = (), start: int = 0, total: int = 0) -> None:
        super().__init__()
        self.drawn, self.start, self.total = drawn, start, total
        self.sites: dict[str, frozenset[str]] = {}
        self.several: set[str] = set()
        self.overruled: set[str] = set()
        self.unclear: set[str] = set()
        self._shown = ShownRows()

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if site_is_subsample(msg):
            self._shown.before(msg)
        elif name in self.drawn:
            if _values_held(name):
                self.overruled.add(name)
        elif is_held(msg):
            self._hold(msg)

    def _hold(self, msg: Any) -> None:
        name, value = msg["name"], torch.as_tensor(msg["value"])
        msg["value"], unclear = held_at_rows(msg, value, self._shown, self.start, self.total)
        self.sites[name] = plates_of(msg)
        if value.numel() > 1:
            self.several.add(name)
        if unclear:
            self.unclear.add(name)

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self._shown.after(msg)

    def data(self, names: Iterable[str]) -> set[str]:
        """
        The names of those that are data, see :func:`data_among_held`.

        :param names: of all sites that may be data or are to be predicted, held ones too.
        :returns: these names.
        :raises ShapeError: if nobody can tell which rows the values of another one belong to.
        """
        others = bool(set(names) - self.sites.keys())
        data = data_among_held(self.sites, others)
        if self.unclear - data:
            raise in_another_order(self.unclear - data)
        return data

    def warnings(
        self,
        data: Collection[str],
        parents: Callable[[], Mapping[str, Collection[str]] | None],
    ) -> list[str]:
        """
        What is to be told of what is held.

        :param data: names of those that are data.
        :param parents: see :func:`told_of_data_among_held`.
        :returns: texts of warnings.
        """
        ambiguous = told_of_data_among_held(self.sites, data, self.several, parents)
        return [text for text in (told_of_overruled(self.overruled), ambiguous) if text]


def is_held(site: Any) -> bool:
    """
    Whether a site has its value from ``pyro.condition``, around the model or within it.

    :param site: a sample site, as it passes.
    :returns: whether it is observed, and not because the model says ``obs=``.
    """
    if not site["is_observed"]:
        return False
    return any(value is site["value"] for value in _values_held(site["name"]))


def _values_held(name: str) -> list[Any]:
    """What conditions, around the model or within it, have for a name."""
    conditions = [one for one in _PYRO_STACK if isinstance(one, ConditionMessenger)]
    parts = name.split("/") if conditions else ()  # scopes put outer/ in front of names
    known = ["/".join(parts[first:]) for first in range(len(parts))]
    return [_value_of(one.data, name) for one in conditions for name in known if name in one.data]


def _value_of(data: Any, name: str) -> Any:
    return data.nodes[name].get("value") if isinstance(data, Trace) else data[name]


def refuse_condition_around(call: str) -> None:
    """
    Refuses a call within ``with poutine.condition(data=...):``, or ``poutine.do``.

    These would hold what the guide draws as well, or set what it has drawn for the model.

    :param str call: the name of the function that was called.
    :raises SiteError: naming the sites that are held.
    """
    around = [one for one in _PYRO_STACK if isinstance(one, (ConditionMessenger, DoMessenger))]
    if not around:
        return
    names = [
        n for one in around for n in (one.data.nodes if isinstance(one.data, Trace) else one.data)
    ]
    how = "do" if isinstance(around[-1], DoMessenger) else "condition"
    raise SiteError(
        f"{call} was called within `with poutine.{how}(data=...):`, which holds {names} in the "
        f"guide too. Hold them in the model alone: {call}(poutine.{how}(model, data=...), "
        "guide, ...)."
    )


def told_of_overruled(names: Iterable[str]) -> str:
    """
    Says that the guide's draws were taken for what is held.

    :param names: of sites that are held and that the guide draws.
    :returns: a text for a warning; empty without any.
    """
    listed = sorted(names)
    if not listed:
        return ""
    return (
        f"{listed} are held by poutine.condition, and the guide draws them too: its draws were "
        "taken, as by Pyro's Predictive. For what another value would do write "
        f"poutine.do(model, data={{{listed[0]!r}: value}}); to learn the others given this value, "
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


def told_of_unheard(names: Collection[str]) -> str:
    """
    Says that draws know nothing of what is held and comes after them.

    :param names: of the sites, see :func:`drawn_unheard`.
    :returns: a text for a warning; empty without any.
    """
    if not names:
        return ""
    return (
        f"{_listed(names)} are drawn before values that poutine.condition holds and that depend on "
        "them: a model runs forwards, so that these draws know nothing of what is held. To draw "
        "them given it make them latents of the guide: fit one to the model that observes what is "
        "held, and does not observe them."
    )


def told_of_data_among_held(
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
    stays = _listed(rest) if rest else "no others"
    return (
        f"all that the model observes is held by poutine.condition: {_listed(data)} were taken for "
        f"its data, by their plates, and {stays} for values that stay. Where that is wrong pass "
        "the data as obs=y, an argument of the model, and hold the others alone."
    )


def _series(name: str) -> str:
    """What is common to the names of the steps of a series."""
    return re.sub(r"\d+", "", name)


def _listed(names: Collection[str]) -> str:
    """Some names, of each series the first."""
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


def data_among_held(held: Mapping[str, frozenset[str]], others: bool) -> set[str]:
    """
    Tells data from parameters, among what is held.

    Where the model has data of its own, what is held are values of parameters, or what forecasts
    start from. Where it has none, the data are those in plates; if none is, they are all data.

    :param dict held: names of the sites, with their plates.
    :param bool others: whether the model has data, or something to predict, beside them.
    :returns: names of those that are data.
    """
    if others:
        return set()
    return {name for name, plates in held.items() if plates} or set(held)
