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
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration.choice_for_all import plates_of
from pyro_implicit.handlers.held.held_rows import held_at_rows
from pyro_implicit.handlers.held.held_values import HeldValues
from pyro_implicit.handlers.held.held_warnings import listed
from pyro_implicit.handlers.rows.latent_rows import ShownRows

__all__ = [
    "HeldSites",
    "is_held",
    "refuse_condition_around",
]


class HeldSites(HeldValues, Messenger):
    """
    Notes the sites that are held, of models that are run within.

    What is held as a number, or an array, is a tensor for all that comes after, and what is held
    for each row of a plate has the rows that it shows, see
    :func:`~pyro_implicit.handlers.held.held_rows.held_at_rows`.

    :param drawn: names of the latents that a guide draws, whose values come instead.
    :param int start: the first row of the arguments, if they are cut.
    :param int total: how many these are in all; 0 if they are not cut.
    """

    def __init__(self, drawn: Collection[str] = (), start: int = 0, total: int = 0) -> None:
        HeldValues.__init__(self)
        Messenger.__init__(self)
        self.drawn, self.start, self.total = drawn, start, total
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
        self.note(name, value, plates_of(msg))
        if unclear:
            self.unclear.add(name)

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self._shown.after(msg)

    def data(self, names: Iterable[str]) -> set[str]:
        """
        The names of those that are data, see :meth:`HeldValues.data_beside`.

        :param names: of all sites that may be data or are to be predicted, held ones too.
        :returns: these names.
        :raises ShapeError: if nobody can tell which rows the values of another one belong to.
        """
        data = self.data_beside(bool(set(names) - self.sites.keys()))
        self.refuse_unclear(data)
        return data

    def warnings(
        self,
        data: Collection[str],
        parents: Callable[[], Mapping[str, Collection[str]] | None],
    ) -> list[str]:
        """
        What is to be told of what is held.

        :param data: names of those that are data.
        :param parents: see ``warning_of_data_among_held``.
        :returns: texts of warnings.
        """
        notes = self.warning_of_overruled(), self.ambiguity(data, parents)
        return [text for text in notes if text]


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


def refuse_condition_around(call: str, has_model: bool = True) -> None:
    """
    Refuses a call within ``with poutine.condition(data=...):``, ``poutine.do`` or ``uncondition``.

    These would hold what the guide draws as well, or set what it has drawn for the model, or draw
    what that observes.

    :param str call: the name of the function that was called.
    :param bool has_model: whether it takes a model, before the guide.
    :raises SiteError: naming the sites that are held.
    """
    if any(isinstance(one, UnconditionMessenger) for one in _PYRO_STACK):
        raise SiteError(
            f"{call} was called within `with poutine.uncondition():`, which draws what the model "
            "observes. Call it outside of that."
        )
    holding = (ConditionMessenger, DoMessenger)
    around = [one for one in _PYRO_STACK if isinstance(one, holding) and one.data]
    if not around:
        return
    data = [one.data.nodes if isinstance(one.data, Trace) else one.data for one in around]
    names = listed({name for one in data for name in one})
    how = "do" if isinstance(around[-1], DoMessenger) else "condition"
    instead = f"Hold them in the model alone: {call}(poutine.{how}(model, data=...), guide, ...)."
    raise SiteError(
        f"{call} was called within `with poutine.{how}(data=...):`, which holds {names} in the "
        f"guide too. {instead if has_model else 'Call it outside of that.'}"
    )
