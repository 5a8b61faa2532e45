"""Latents whose prior a mask takes away, as those that ``obs_mask`` makes."""

from __future__ import annotations

from typing import Any

import torch

from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta

__all__ = ["NO_BOUND", "told_of_masked_latent"]

#: what a fit of such a model says
NO_BOUND = "the loss is no bound on the evidence"


def told_of_masked_latent(site: Any) -> str:
    """
    Tells of a latent whose prior a mask takes away: its entropy has nothing to hold it.

    :param site: the message of a latent site, or its node in a trace.
    :returns: what to write, for a warning; empty for all others.
    """
    if is_auxiliary(site) or is_delta(site) or (site["infer"] or {}).get("enumerate"):
        return ""  # what is summed out has no entropy
    masks = (site["mask"], getattr(site["fn"], "_mask", None))  # around it, and .mask(...)
    counts = [int((~one.bool()).sum()) for one in masks if isinstance(one, torch.Tensor)]
    count = max(counts, default=0)
    if not count:
        return ""
    return (
        f"latent site {site['name']!r} is masked in {count} places, where its entropy counts and "
        f"no prior holds it: {NO_BOUND} and may fall without end, and "
        "draws mean nothing. Mask the observations alone (poutine.mask around obs=), and write "
        "missing values as latents of their own in place of obs_mask."
    )
