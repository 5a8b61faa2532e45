"""Latents whose prior a mask takes away, as those that ``obs_mask`` makes for Pyro's objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.masks.hidden_observations import HIDDEN_SUFFIX
from pyro_implicit.handlers.pointwise import SiteVisitor, is_auxiliary, is_delta

__all__ = ["LOSS_IS_NO_BOUND", "warning_of_hidden_values", "warning_of_masked_latent"]

#: the warnings of a fit say so, and it then promises no bound
LOSS_IS_NO_BOUND = "the loss is no bound on the evidence"

_ADVICE_ON_MASKS = "Mask the observations alone (poutine.mask around obs=)"


def warning_of_masked_latent(site: Any) -> str:
    """
    Tells of a latent whose prior a mask takes away: its entropy has nothing to hold it.

    :param site: the message of a latent site, or its node in a trace.
    :returns: what to write, for a warning; empty for all others.
    """
    notes = _described(site)
    return f"{notes} {_ADVICE_ON_MASKS}." if notes else ""


def _described(site: Any) -> str:
    if is_auxiliary(site) or is_delta(site) or (site["infer"] or {}).get("enumerate"):
        return ""  # what is summed out has no entropy
    masks = (site["mask"], getattr(site["fn"], "_mask", None))  # around it, and .mask(...)
    counts = [int((~one.bool()).sum()) for one in masks if isinstance(one, torch.Tensor)]
    count = max(counts, default=0)
    if not count or _is_discrete(site["fn"]):  # which no guide draws, as is told
        return ""
    return (
        f"latent site {site['name']!r} is masked in {count} places, where its entropy counts and "
        f"no prior holds it: {LOSS_IS_NO_BOUND} and may fall without end, and draws mean nothing."
    )


def _is_discrete(fn: Any) -> bool:
    try:
        return bool(fn.support.is_discrete)
    except NotImplementedError:  # a support that nobody has stated
        return False


def warning_of_hidden_values(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    """
    Tells of what ``obs_mask`` hides, for an objective that does not know of it.

    :param model: a Pyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: what to write, for a warning of each such latent.
    """
    found: list[str] = []

    def visit(site: Any) -> None:
        notes = (
            _described(site)
            if site["name"].endswith(HIDDEN_SUFFIX) and not site["is_observed"]
            else ""
        )
        if notes:
            found.append(
                f"{notes} Objectives of pyro_implicit take what obs_mask hides for replicates of "
                f"the data, which hold it; those of Pyro do not. {_ADVICE_ON_MASKS} for these."
            )

    try:
        with unseen_run(), torch.no_grad(), SiteVisitor(visit):
            model(*args, **kwargs)
    except Exception:  # whatever a model does at draws of its prior: its steps tell
        return []
    return found
