"""Whether a guide's values for rows are in the order of the rows' numbers."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoCallable, AutoGuide, AutoGuideList
from pyro.poutine.messenger import unwrap

from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.members import members_of
from pyro_implicit.handlers.rows.row_order import BY_NUMBER, BY_PLACE, RowOrder

__all__ = ["numbered_if_called", "numbered_if_drawn"]


def numbered_if_called(guide: Any) -> RowOrder:
    """
    Which latents of rows are in the order of their numbers, where a guide is run.

    A guide with plates of its own shows all of their rows. One of this package that makes the
    model's plates (``create_plates``) follows them, and a function the arguments. (Parameters of
    Pyro's autoguides are cut where a plate shows fewer rows, but keep their order where it shows
    all.) A list has the order of each of its parts, whatever handlers are around a guide.

    :param guide: any guide.
    :returns: the order of what it samples.
    """
    if isinstance(guide, (ConditionalGuide, AutoCallable)):
        return BY_PLACE
    if isinstance(guide, AutoGuideList):
        return RowOrder.of_parts([(_names(part), numbered_if_called(part)) for part in guide])
    if isinstance(guide, ImplicitGuide):
        own = guide.create_plates if guide.master is None else guide.master().create_plates
        return BY_NUMBER if own is None else BY_PLACE
    if isinstance(guide, AutoGuide):
        return BY_NUMBER
    inner: Any = unwrap(guide)
    if inner is not guide:
        return numbered_if_called(inner)
    if _is_ensemble(guide):
        return RowOrder.of_any([numbered_if_called(one) for one in guide.guides])
    return BY_NUMBER if callable(getattr(guide, "sample", None)) else BY_PLACE


def numbered_if_drawn(guide: Any) -> RowOrder:
    """
    Which latents of rows are in the order of their numbers in draws of a guide.

    :param guide: any guide.
    :returns: the order in which :func:`~pyro_implicit.posterior_draws` gives them.
    """
    if _is_ensemble(guide):
        return RowOrder.of_any([numbered_if_drawn(one) for one in guide.guides])
    if not isinstance(guide, ConditionalGuide) and callable(getattr(guide, "sample", None)):
        return BY_NUMBER
    return numbered_if_called(guide)


def _is_ensemble(guide: Any) -> bool:
    return bool(members_of(guide))


def _names(part: Any) -> frozenset[str]:
    """The latents of a part of a list, as far as it has been run."""
    if isinstance(part, AutoGuideList):
        return frozenset().union(*map(_names, part))
    if isinstance(part, ImplicitGuide):
        return frozenset(site.name for site in part.sites)
    trace = getattr(part, "prototype_trace", None)
    return frozenset() if trace is None else frozenset(trace.stochastic_nodes)
