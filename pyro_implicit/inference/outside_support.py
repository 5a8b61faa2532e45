"""Draws that the prior of a latent would never make: those of another model's guide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.handlers.supports.served_supports import bounds_of, is_real, plain_support

__all__ = ["drawn_outside", "is_outside"]

#: of draws, since one at the edge, which rounding has put there, says nothing
_MAX_SHARE_OUTSIDE = 0.01


def is_outside(fn: Any, values: Tensor) -> bool:
    """
    Tells whether more than rounding puts draws of a latent outside its prior's support.

    :param fn: the prior.
    :param torch.Tensor values: draws, shape ``(*sample, *shape of the site)``.
    :returns: whether more than a hundredth of them is; False where the support cannot be told, or
        is of another shape (some rows of a plate), and of draws that are not finite, which is
        another matter.
    """
    if not (bool(values.sum().isfinite()) or bool(values.isfinite().all())):
        return False
    try:
        support = own_support(fn)
        if is_real(support):
            return False
        inside = support.check(_beside(values, support))
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return False
    return 1 - float(torch.as_tensor(inside).float().mean()) > _MAX_SHARE_OUTSIDE


def _beside(values: Tensor, support: Any) -> Tensor:
    """Values on the device of a support's bounds."""
    bounds = [one for one in bounds_of(plain_support(support)) if isinstance(one, Tensor)]
    return values.to(bounds[0].device) if bounds else values


def drawn_outside(supports: Mapping[str, Any]) -> str:
    """
    Says at which latents the guide draws what the model cannot.

    :param supports: by name of a latent the support that the model gives it.
    :returns: a text for a warning; empty if there are none.
    """
    if not supports:
        return ""
    notes = ", ".join(f"{name!r} outside {supports[name]}" for name in sorted(supports))
    return (
        f"the guide draws {notes}, which is the support that the model's prior has: it was made "
        "for another model, or loaded with another one's state. Fit a guide to this model."
    )
