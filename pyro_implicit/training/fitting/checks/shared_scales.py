"""Latents that many others depend on, in guides that make them too narrow."""

from __future__ import annotations

from typing import Any

from pyro_implicit._few import few_of
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.initialization.network import is_network

__all__ = ["warning_of_shared_scales"]

_MIN_LATENTS_PER_SHARED = 100  # all latents over those of a site that counts as shared by others
_MAX_SITES_NAMED = 3


def warning_of_shared_scales(guide: Any) -> list[str]:
    """
    Says of scales that they tend to come out too narrow, which no number here can tell.

    A generator of fewer noises than latents has them depend on these alone, and fills the other
    directions with noise that is independent: of the one that all groups' latents move with, it has
    too little (docs/results/panel.md, *Scales that many latents share*).

    :param guide: a fitted guide; others than an :class:`~pyro_implicit.guides.ImplicitGuide`
        without full rank, those of rows and those of networks are not looked at.
    :returns: what a user should know: at most one text.
    """
    if not isinstance(guide, ImplicitGuide) or isinstance(guide, ConditionalGuide):
        return []
    trace = getattr(guide, "prototype_trace", None)
    if trace is None:  # never built, or loaded
        return []
    generators: list[Any] = [sampler.generator for sampler in guide.samplers]
    if all(one.full_rank for one in generators):
        return []
    sites = list(guide.sites)
    total = sum(site.numel for site in sites)
    shared = [repr(site.name) for site in sites if _MIN_LATENTS_PER_SHARED * site.numel <= total]
    if not shared or is_network(sites, trace):
        return []
    return [
        f"latents that many others share ({few_of(shared, _MAX_SITES_NAMED)}) tend to come out too "
        f"narrow from such a guide of {total} latents, and nothing here can tell by how much: "
        "compare with HyperNetworkGuide(model, generator=AutoregressiveGenerator), whose steps "
        "take two to four times as long, or with refine(model, guide, ...)"
    ]
