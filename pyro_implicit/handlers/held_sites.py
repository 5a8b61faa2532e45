"""Sites that ``poutine.condition`` holds at a value, beside those that a model observes itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pyro.poutine import Trace
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK

__all__ = ["HeldSites", "data_among_held", "is_held", "is_in_a_plate", "told_of_overruled"]


class HeldSites(Messenger):
    """
    Notes the sites that are held, of models that are run within.

    :ivar dict sites: their names, and whether each is in a plate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, bool] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if is_held(msg):
            self.sites[msg["name"]] = is_in_a_plate(msg)
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


def is_in_a_plate(site: Any, but: str = "") -> bool:
    """
    Whether a site is within a plate.

    :param site: a sample site.
    :param str but: name of a plate that does not count: that of draws.
    :returns: whether it is.
    """
    return any(frame.name != but for frame in site["cond_indep_stack"])


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


def data_among_held(held: Mapping[str, bool], others: bool) -> set[str]:
    """
    Tells data from parameters, among what is held.

    Where the model has data of its own, what is held are values of parameters, or what forecasts
    start from. Where it has none, the data are those in plates; if none is, they are all data.

    :param dict held: names of the sites, and whether each is in a plate.
    :param bool others: whether the model has data, or something to predict, beside them.
    :returns: names of those that are data.
    """
    if others:
        return set()
    return {name for name, in_plate in held.items() if in_plate} or set(held)
