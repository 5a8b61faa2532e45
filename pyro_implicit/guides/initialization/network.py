"""Which models are networks, whose hidden units a quick fit would give up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["MAX_SMALL_NETWORK_LATENTS", "has_layers", "is_network"]

#: up to here a network is treated like any other model
MAX_SMALL_NETWORK_LATENTS = 256


def has_layers(sites: Sequence[LatentSite], trace: Any) -> bool:
    """
    Whether at least half of the latents are weights, of several layers.

    :param sites: the latent sites.
    :param trace: of the model, with them.
    """
    wrapped = {s.name for s in sites if "implicit_module_value" in trace.nodes[s.name]["infer"]}
    matrices = {site.name for site in sites if site.event_dim >= 2}
    if len(matrices) < 2:
        return False
    total = sum(site.numel for site in sites)
    weights = sum(site.numel for site in sites if site.name in wrapped | matrices)
    return 2 * weights >= total


def is_network(sites: Sequence[LatentSite], trace: Any) -> bool:
    """
    Whether most latents are weights of several layers, and the network is not a small one.

    That has up to :data:`MAX_SMALL_NETWORK_LATENTS` latents.

    :param sites: the latent sites.
    :param trace: of the model, with them.
    """
    is_large = sum(site.numel for site in sites) > MAX_SMALL_NETWORK_LATENTS
    return is_large and has_layers(sites, trace)
