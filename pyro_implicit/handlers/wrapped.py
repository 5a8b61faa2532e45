"""What a distribution is wrapped in."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch

__all__ = ["base_distribution", "is_of_library", "without_events"]


def base_distribution(fn: Any) -> Any:
    """
    Takes off everything that a distribution is wrapped in.

    :param fn: a distribution, perhaps masked, expanded, transformed or with reinterpreted dims.
    :returns: the distribution at the bottom.
    """
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def is_of_library(fn: Any) -> bool:
    """
    Tells distributions of torch and Pyro from those of a user's own, which may take what they like.

    :param fn: a distribution, perhaps wrapped.
    :returns: whether the distribution at the bottom is one of these.
    """
    return type(base_distribution(fn)).__module__.partition(".")[0] in ("torch", "pyro")


def without_events(fn: Any) -> Any:
    """
    Takes off what only declares events or masks a density.

    :param fn: a distribution.
    :returns: it without what only declares independent dims to be an event, or masks a density.
    """
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution)):
        fn = fn.base_dist
    return fn
