"""Which latents of a model other sites depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.ops.provenance import get_provenance, track_provenance
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.handlers.rows.latent_rows import AtDraw

__all__ = ["upstream_sites"]


class _Track(Messenger):
    """Marks the value of each site by its name, and reads the marks of each distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[str, frozenset[str]] = {}

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            return
        name, value = msg["name"], msg["value"]
        log_prob = msg["fn"].log_prob(value, *msg["args"], **msg["kwargs"])
        self.parents[name] = get_provenance(log_prob) - {name}
        msg["value"] = track_provenance(value, frozenset({name}))


def upstream_sites(
    model: Callable[..., Any], args: Any, kwargs: Any, values: Mapping[str, Tensor]
) -> dict[str, frozenset[str]] | None:
    """
    Finds which sites the distribution of each site depends on, by a run of the model.

    :param model: a model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param values: of latents that are not to be drawn, of the shape of their sites.
    :returns: by site, the names of those that it is a function of, itself left out; None for a
        model that cannot be followed.
    """
    try:
        with torch.no_grad(), _Track() as track, AtDraw(values):
            model(*args, **kwargs)
    except Exception:  # operations that tensors with marks do not know, and what a model raises
        return None
    return track.parents
