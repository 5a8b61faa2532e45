"""Model and guide that are handed over in the wrong order."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoGuide

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.draw_quantiles import DrawQuantiles

__all__ = ["check_order"]


def check_order(model: Any, call: str) -> None:
    """
    Refuses a guide in the place of the model.

    :param model: what was given as the model.
    :param str call: what to write instead.
    :raises ArgumentError: if it is a guide: an autoguide, chains or an ensemble.
    """
    if isinstance(model, (AutoGuide, DrawQuantiles)):
        raise ArgumentError(
            f"the model is a guide, {type(model).__name__}: model and guide are swapped. Write "
            f"{call}, the model first."
        )
