"""What ``obs_mask`` hides of observations, as latents that a guide draws."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from pyro.poutine.messenger import Messenger

from pyro_implicit.handlers.masks.hidden_observations import HIDDEN, SHOWN

__all__ = ["Replicates"]


class Replicates(Messenger):
    r"""
    Gives the values that ``obs_mask`` has no use for a density: that of replicates of the data.

    ``pyro.sample("y", fn, obs=y, obs_mask=seen)`` makes a latent of the whole shape,
    ``y_unobserved``, and masks its prior where a value is seen. There nothing reads it, nothing
    holds it, and its entropy grows without end. With its prior left on,
    :math:`\int p(\tilde y \mid z)\,d\tilde y = 1` whatever the latents :math:`z` are: the evidence
    and the posterior of all else are the same, and these values are replicates. Where no guide
    draws them the model does, from their prior, which then is both their density and that of their
    draws and counts nowhere.

    Discrete ones are left alone, and so are masks of a user around both halves. It is to be around
    the model, within what sets or records values.

    :param drawn: names of latents that a guide draws; by default as if it drew all.
    """

    def __init__(self, drawn: Container[str] | None = None) -> None:
        super().__init__()
        self._drawn = drawn

    def __enter__(self) -> Any:
        self._shown: dict[str, Any] = {}
        return super().__enter__()

    def _pyro_sample(self, msg: Any) -> None:
        name, mask = msg["name"], msg["mask"]
        if mask is None or not isinstance(name, str):
            return
        if msg["is_observed"]:
            if name.endswith(SHOWN):
                self._shown[name.removesuffix(SHOWN)] = mask
        elif name.endswith(HIDDEN) and not getattr(msg["fn"], "has_enumerate_support", False):
            shown = self._shown.get(name.removesuffix(HIDDEN))
            if shown is None or _shape(shown) != _shape(mask):
                return
            if self._drawn is None or name in self._drawn:
                msg["mask"] = torch.as_tensor(mask) | torch.as_tensor(shown)
            else:
                msg["mask"] = torch.zeros_like(torch.as_tensor(mask))


def _shape(mask: Any) -> torch.Size:
    return torch.as_tensor(mask).shape
