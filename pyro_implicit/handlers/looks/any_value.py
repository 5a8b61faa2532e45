"""Some value for latents whose prior has no draws, where a run is only a look at a model."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from torch.distributions import transform_to

from pyro_implicit.handlers.wrapped import base_distribution

__all__ = ["AnyValue"]


class AnyValue(Messenger):
    """Gives latents of an ``ImproperUniform``, which nobody can draw from, the image of 0."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is not None or msg["done"]:
            return
        if isinstance(base_distribution(msg["fn"]), dist.ImproperUniform):
            support = transform_to(msg["fn"].support)
            shape = support.inverse_shape(msg["fn"].shape())
            msg["value"] = support(torch.zeros(shape))
