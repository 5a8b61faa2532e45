"""What is noted of sites that ``poutine.condition`` holds, whoever runs the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pyro_implicit.handlers.held.held_rows import in_another_order
from pyro_implicit.handlers.held.held_warnings import (
    warning_of_data_among_held,
    warning_of_overruled,
)

__all__ = ["HeldValues"]


@dataclass(eq=False)
class HeldValues:
    """
    Sites that are held, and what is to be told of them.

    :param dict sites: those of no draw of the guide, with their plates.
    :param set several: names of those that have more than one number.
    :param set overruled: names of those that the guide draws.
    :param set unclear: names of those of which nobody can tell which rows their values belong to.
    """

    sites: dict[str, frozenset[str]] = field(default_factory=dict)
    several: set[str] = field(default_factory=set)
    overruled: set[str] = field(default_factory=set)
    unclear: set[str] = field(default_factory=set)

    def note(self, name: str, value: Any, plates: frozenset[str]) -> None:
        """
        Notes a site that stays.

        :param str name: of it.
        :param value: where it is held.
        :param plates: names of the plates around it.
        """
        self.sites[name] = plates
        if torch.as_tensor(value).numel() > 1:
            self.several.add(name)

    def data_beside(self, others: bool) -> set[str]:
        """
        Tells data from parameters, among what is held.

        Where the model has data of its own, what is held are values of parameters, or what
        forecasts start from. Where it has none, the data are those in plates; if none is, they are
        all data.

        :param bool others: whether the model has data, or something to predict, beside them.
        :returns: names of those that are data.
        """
        if others:
            return set()
        return {name for name, plates in self.sites.items() if plates} or set(self.sites)

    def refuse_unclear(self, data: Collection[str]) -> None:
        """
        Refuses values of rows of which nobody can tell the rows.

        :param data: names of those that are data, which are drawn or scored by place.
        :raises ShapeError: if there are others.
        """
        if self.unclear - set(data):
            raise in_another_order(self.unclear - set(data))

    def ambiguity(
        self,
        data: Collection[str],
        parents: Callable[[], Mapping[str, Collection[str]] | None],
    ) -> str:
        """
        Says what was taken for data, where others might be.

        :param data: names of those that were taken for data.
        :param parents: see ``warning_of_data_among_held``.
        :returns: a text for a warning, or an empty one.
        """
        return warning_of_data_among_held(self.sites, data, self.several, parents)

    def warning_of_overruled(self) -> str:
        """
        Says that the guide's draws were taken for what is held.

        :returns: a text for a warning; empty where none were.
        """
        return warning_of_overruled(self.overruled)
