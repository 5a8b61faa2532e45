"""Model and guide that are handed over in the wrong order."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoGuide

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.draw_quantiles import DrawQuantiles

__all__ = ["check_order", "is_guide"]


def is_guide(value: Any) -> bool:
    """
    Whether something is known to be a guide, and can be no model.

    :param value: what was given as one.
    :returns: whether it is an autoguide, chains or an ensemble.
    """
    return isinstance(value, (AutoGuide, DrawQuantiles))


def check_order(model: Any, call: str, guide: Any = None) -> None:
    """
    Refuses a guide in the place of the model, and the model in that of the guide.

    :param model: what was given as the model.
    :param str call: what to write instead.
    :param guide: what was given as the guide.
    :raises ArgumentError: if the model is a guide (an autoguide, chains or an ensemble), and if the
        guide, or a member of an ensemble, is the model itself.
    """
    if is_guide(model):
        raise ArgumentError(
            f"the model is a guide, {type(model).__name__}: model and guide are swapped. Write "
            f"{call}, the model first."
        )
    members = guide if isinstance(guide, list) else getattr(guide, "guides", ())
    if guide is model or (isinstance(members, list) and any(one is model for one in members)):
        raise ArgumentError(
            "the guide is the model itself, whose draws know nothing of the data. Write "
            "guide = HyperNetworkGuide(model), and fit it."
        )
