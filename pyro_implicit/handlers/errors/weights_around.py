"""Weights and masks around a call whose runs of the model do not see them."""

from __future__ import annotations

from typing import Any

from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.scale_messenger import ScaleMessenger
from torch import Tensor

from pyro_implicit.exceptions import SiteError

__all__ = ["refuse_weights_around"]


def refuse_weights_around(call: str) -> None:
    """
    Refuses a call within ``with poutine.scale(...):`` or ``with poutine.mask(...):``.

    The density of a model is taken of the model alone, so that these would change nothing.

    :param str call: the name of the function that was called.
    :raises SiteError: naming the handler.
    """
    around = [one for one in _PYRO_STACK if _changes_weights(one)]
    if not around:
        return
    name = "mask" if isinstance(around[-1], MaskMessenger) else "scale"
    raise SiteError(
        f"{call} was called within `with poutine.{name}(...):`, of which its runs of the model "
        f"see nothing. Write it around the model: {call}(poutine.{name}(model, {name}={name}), "
        "...)."
    )


def _changes_weights(handler: Any) -> bool:
    """Whether a handler is of weights, and not one that counts everything once."""
    if isinstance(handler, MaskMessenger):
        return handler.mask is not True
    if not isinstance(handler, ScaleMessenger):
        return False
    return isinstance(handler.scale, Tensor) or handler.scale != 1.0
