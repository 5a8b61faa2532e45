"""Whether a guide's values for rows are in the order of the rows' numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro.infer.autoguide import AutoCallable, AutoGuide, AutoGuideList

from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide

__all__ = ["numbered_if_called", "numbered_if_drawn"]


def numbered_if_called(guide: Callable[..., Any]) -> bool:
    """
    Whether latents of rows are in the order of their numbers, where a guide is run.

    A guide with plates of its own shows all of their rows. One of this package that makes the
    model's plates (``create_plates``) follows them, and a function the arguments. (Parameters of
    Pyro's autoguides are cut where a plate shows fewer rows, but keep their order where it shows
    all.)

    :param guide: any guide.
    :returns: whether what it samples is in the order of the rows' numbers.
    """
    if isinstance(guide, (ConditionalGuide, AutoGuideList, AutoCallable)):
        return False
    if isinstance(guide, ImplicitGuide):
        return guide.create_plates is None and guide.master is None
    if isinstance(guide, AutoGuide):
        return True
    return callable(getattr(guide, "sample", None))


def numbered_if_drawn(guide: Callable[..., Any]) -> bool:
    """
    Whether latents of rows are in the order of their numbers in draws of a guide.

    :param guide: any guide.
    :returns: whether :func:`~pyro_implicit.posterior_draws` gives them so.
    """
    by_sample = not isinstance(guide, ConditionalGuide) and callable(getattr(guide, "sample", None))
    return by_sample or numbered_if_called(guide)
