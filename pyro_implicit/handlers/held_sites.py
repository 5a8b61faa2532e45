"""Sites that ``poutine.condition`` holds at a value, beside those that a model observes itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK

from pyro_implicit.handlers.choice_for_all import plates_of

__all__ = [
    "HeldSites",
    "data_among_held",
    "is_held",
    "told_of_data_among_held",
    "told_of_overruled",
]


class HeldSites(Messenger):
    """
    Notes the sites that are held, of models that are run within.

    :ivar dict sites: their names, with their plates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, frozenset[str]] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if is_held(msg):
            self.sites[msg["name"]] = plates_of(msg)
            msg["value"] = torch.as_tensor(msg["value"])  # of a number, or an array

    def parameters(self, data: Iterable[str]) -> set[str]:
        """
        The names of those that are no data, see :func:`data_among_held`.

        :param data: names of all sites that may be data or are to be predicted, held ones too.
        :returns: these names.
        """
        others = bool(set(data) - self.sites.keys())
        return self.sites.keys() - data_among_held(self.sites, others)


def is_held(site: Any) -> bool:
    """
    Whether a site has its value from ``pyro.condition``, around the model or within it.

    :param site: a sample site, as it passes.
    :returns: whether it is observed, and not because the model says ``obs=``.
    """
    if not site["is_observed"]:
        return False
    conditions = (one for one in _PYRO_STACK if isinstance(one, ConditionMessenger))
    return any(
        value is site["value"] and f"/{site['name']}".endswith(f"/{name}")  # in scopes, a prefix
        for one in conditions
        for name, value in _items(one.data)
    )


def _items(data: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(data, Trace):
        return ((name, node.get("value")) for name, node in data.nodes.items())
    return data.items()  # type: ignore[no-any-return]


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


def told_of_data_among_held(
    held: Mapping[str, frozenset[str]], data: Collection[str], several: Collection[str]
) -> str:
    """
    Says what was taken for data, where others might be.

    :param held: names of the sites, with their plates.
    :param data: names of those that were taken for data.
    :param several: names of those that have more than one number.
    :returns: a text for a warning; empty where nothing else was likely.
    """
    rest = sorted(held.keys() - set(data))
    plates = {held[name] for name in data if held[name]}
    if not data or (len(plates) < 2 and not set(rest) & set(several)):
        return ""
    return (
        f"all that the model observes is held by poutine.condition: {sorted(data)} were taken for "
        f"its data, by their plates, and {rest or 'no others'} for values that stay. Where that is "
        "wrong pass the data as obs=y, an argument of the model, and hold the others alone."
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
