"""Sites that ``poutine.condition`` holds at a value, beside those that a model observes itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.util import site_is_subsample

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.choice_for_all import plates_of
from pyro_implicit.handlers.held_rows import held_at_rows, in_another_order
from pyro_implicit.handlers.latent_rows import ShownRows
from pyro_implicit.handlers.told_of_held import listed, told_of_data_among_held, told_of_overruled

__all__ = [
    "HeldSites",
    "data_among_held",
    "is_held",
    "refuse_condition_around",
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
    data = [one.data.nodes if isinstance(one.data, Trace) else one.data for one in around]
    names = listed({name for one in data for name in one})
    how = "do" if isinstance(around[-1], DoMessenger) else "condition"
    raise SiteError(
        f"{call} was called within `with poutine.{how}(data=...):`, which holds {names} in the "
        f"guide too. Hold them in the model alone: {call}(poutine.{how}(model, data=...), "
        "guide, ...)."
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
