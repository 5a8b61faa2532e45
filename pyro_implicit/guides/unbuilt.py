"""Guides of Pyro's that nobody has called yet: they make themselves at their first call."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoCallable, AutoGuide, AutoGuideList

from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.members import members_of

__all__ = ["is_unbuilt", "refuse_unbuilt"]


def is_unbuilt(guide: Any) -> bool:
    """
    Whether a guide of Pyro's would be made at its next call, of whatever it is called with.

    :param guide: a guide, or anything else, which would not.
    """
    if isinstance(guide, AutoGuideList):
        return any(is_unbuilt(part) for part in guide)
    if not isinstance(guide, AutoGuide) or isinstance(guide, (AutoCallable, ImplicitGuide)):
        return False
    return guide.prototype_trace is None


def refuse_unbuilt(guide: Any) -> None:
    """
    Refuses a guide of Pyro's that was never called, where it would be called without data.

    Made without the observations it would take these for latents, and nothing would be left to
    predict. Guides of this package refuse by themselves.

    :param guide: a guide, an ensemble of them, or anything else, which passes.
    :raises StateError: if it, or one of its members, was never called.
    """
    for one in [guide, *members_of(guide)]:
        if is_unbuilt(one):
            raise StateError(
                f"the guide ({type(one).__name__}) was never called, so that it would be made "
                "here, untrained, and without the observations: train it first, by fit(model, "
                "guide, *args) or Pyro's SVI. If its parameters are in Pyro's store, loaded from a "
                "file, call guide(*args) once, with the arguments that it was trained with."
            )
