"""What ``obs_mask`` hides of observations, as latents that a guide draws."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from pyro.poutine.messenger import Messenger

from pyro_implicit.handlers.masks.hidden_observations import HIDDEN_SUFFIX, SHOWN_SUFFIX

__all__ = ["Replicates"]


class Replicates(Messenger):
    r"""
    Treats all entries of the latent that ``obs_mask`` makes as draws from their prior.

    ``pyro.sample("y", fn, obs=y, obs_mask=seen)`` makes a latent of the whole shape,
    ``y_unobserved``, and masks its prior where ``y`` is seen. A guide that draws this site would
    have unbounded entropy there. This handler takes that mask away. The prior integrates to one,
    :math:`\int p(\tilde y \mid z)\,d\tilde y = 1`, so that the evidence and the posterior of all
    other latents stay the same; the entries are replicates of the data. Where no guide draws them,
    the model draws them from their prior, and they count nowhere.

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
            if name.endswith(SHOWN_SUFFIX):
                self._shown[name.removesuffix(SHOWN_SUFFIX)] = mask
        elif name.endswith(HIDDEN_SUFFIX) and not getattr(
            msg["fn"], "has_enumerate_support", False
        ):
            shown = self._shown.get(name.removesuffix(HIDDEN_SUFFIX))
            if shown is None or _shape(shown) != _shape(mask):
                return
            if self._drawn is None or name in self._drawn:
                msg["mask"] = torch.as_tensor(mask) | torch.as_tensor(shown)
            else:
                msg["mask"] = torch.zeros_like(torch.as_tensor(mask))


def _shape(mask: Any) -> torch.Size:
    return torch.as_tensor(mask).shape
