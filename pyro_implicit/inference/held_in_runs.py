"""What ``poutine.condition`` holds in the runs of a model for predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pyro_implicit.handlers.held.held_values import HeldValues
from pyro_implicit.handlers.rows.row_coupling import RowsTogether

__all__ = ["HeldInRuns"]


@dataclass(eq=False)
class HeldInRuns(HeldValues):
    """
    Sites that are held, and which of them are data, and so to be drawn.

    :param set before: names of sites that are drawn, and after which one of them came.
    :param data: names of those that turned out to be data.
    :param str ambiguous: what is to be told where others may be data.
    :param bool has_others: whether a run had other data, or other sites to draw.
    """

    before: set[str] = field(default_factory=set)
    data: frozenset[str] = frozenset()
    ambiguous: str = ""
    has_others: bool = False

    def stays(self, name: str) -> bool:
        """
        Tells sites that were noted, and are no data, from all others.

        :param str name: of a site.
        """
        return name in self.sites and name not in self.data

    def finds_data(self, *, all_rows: bool) -> bool:
        """
        Whether data are among what is held, once a run has noted it.

        :param bool all_rows: whether it was a run on all rows.
        :returns: whether some have been found now: the run is to be made again.
        :raises RowsTogether: if some rows cannot show it.
        :raises ShapeError: if nobody can tell which rows the values of another one belong to.
        """
        if not self.sites or self.data or self.has_others:
            self.refuse_unclear(self.data)
            return False
        if not all_rows:
            raise RowsTogether
        self.data = frozenset(self.data_beside(others=False))
        return True

    def warnings(self) -> tuple[str, ...]:
        """What is to be told of it; texts may be empty."""
        return self.warning_of_overruled(), self.ambiguous

    def look(self, parents: Callable[[], Mapping[str, Collection[str]] | None]) -> None:
        """
        Sees whether what was taken for data may be something else.

        :param parents: see ``warning_of_data_among_held``.
        """
        self.ambiguous = self.ambiguity(self.data, parents)
