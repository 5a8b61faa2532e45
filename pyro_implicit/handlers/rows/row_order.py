"""In which order latents have the rows of a plate: that of their numbers, or that of the call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pyro_implicit.exceptions import ShapeError

__all__ = ["BY_NUMBER", "BY_PLACE", "RowOrder"]


@dataclass(frozen=True)
class RowOrder:
    """
    The latents whose values for all rows of a plate are in the order of the rows' numbers.

    :param names: of these latents; None for all that there are.
    :param unclear: names of latents whose order differs between draws; None for all.
    """

    names: frozenset[str] | None = frozenset()
    unclear: frozenset[str] | None = frozenset()

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[frozenset[str], RowOrder]]) -> RowOrder:
        """
        The order in a guide of several parts.

        :param parts: of each the names of its latents and their order.
        :returns: that of all.
        """
        names, unclear = frozenset[str](), frozenset[str]()
        for own, order in parts:
            names |= own if order.names is None else order.names
            unclear |= own if order.unclear is None else order.unclear
        return cls(names, unclear)

    @classmethod
    def of_any(cls, orders: list[RowOrder]) -> RowOrder:
        """
        The order in draws of which each is of any one of several guides.

        :param list orders: those of the guides.
        :returns: the same if they agree.
        """
        if all(order == orders[0] for order in orders):
            return orders[0]
        known = {(order.names, order.unclear) for order in orders}
        if any(None in pair for pair in known):
            return cls(frozenset(), None)
        every = [names for pair in known for names in pair if names is not None]
        return cls(frozenset(), frozenset().union(*every))

    def is_numbered(self, name: str, plate: str, rows: Any) -> bool:
        """
        Whether values for all rows of a plate, which shows all of them, are by number.

        :param str name: of the latent.
        :param str plate: of the rows.
        :param rows: the numbers of the rows that the plate shows, or None.
        :returns: False for values that are by place.
        :raises ShapeError: if draws of several guides differ in that, and it matters.
        """
        if (self.unclear is None or name in self.unclear) and not _in_order(rows):
            raise ShapeError(
                f"the guides of the ensemble have latent {name!r} for all rows of plate {plate!r}, "
                "some in the order of the rows' numbers and some in that of the arguments, and "
                "this call shows them in another order than that of their numbers. Hand the rows "
                "over in the order of their numbers, or make all guides of one kind."
            )
        return self.names is None or name in self.names


def _in_order(rows: Any) -> bool:
    if not isinstance(rows, torch.Tensor):
        return True
    return torch.equal(rows, torch.arange(len(rows), device=rows.device, dtype=rows.dtype))


#: latents of all rows are in the order of the rows' numbers
BY_NUMBER = RowOrder(None)
#: latents of all rows are in the order in which a call shows the rows
BY_PLACE = RowOrder()
