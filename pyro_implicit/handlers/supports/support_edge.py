"""Observations at the edge of a support, where a density is zero or infinite."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributions as torch_dist
from torch import Tensor

from pyro_implicit.handlers.pointwise import batch_log_prob
from pyro_implicit.handlers.wrapped import without_events

__all__ = ["warning_of_edge"]

#: The edges of the support, and what to write for data that have many values there.
_EDGES_AND_ADVICE_BY_FAMILY: dict[type, tuple[tuple[float, ...], str]] = {
    torch_dist.Gamma: (  # Chi2 and Exponential-like ones among them
        (0.0,),
        "a Bernoulli that tells zeros from the rest, and the {kind} for the rest",
    ),
    torch_dist.Beta: (
        (0.0, 1.0),
        "a Categorical that tells zeros and ones from the rest, and the {kind} for the rest",
    ),
    torch_dist.Kumaraswamy: (
        (0.0, 1.0),
        "a Categorical that tells zeros and ones from the rest, and the {kind} for the rest",
    ),
    torch_dist.Dirichlet: (
        (0.0,),
        "a likelihood of counts (Multinomial) where there are any, or move shares off the edge, "
        "(y * (n - 1) + 1 / k) / n for n rows of k shares",
    ),
}


def warning_of_edge(site: Any, at_edges: bool = True) -> str | None:
    """
    Tells of observations that have no likelihood although the support has them.

    A ``Gamma`` has 0 in its support, and there a density that is zero or infinite, unless its
    concentration is 1. Where discrete latents are enumerated, a density at one of their values is
    enough.

    :param site: the message of an observed site, or its node in a trace.
    :param bool at_edges: whether finite observations are looked at; not where discrete latents are
        drawn, at other values of which they may have a density. Infinite ones never have any.
    :returns: what is wrong and what to write, for an error; None for all others.
    """
    fn, value = site["fn"], site["value"]
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    name, own_dims = site["name"], value.dim() - fn.event_dim
    fn = without_events(fn)
    if bool(value.isinf().any()) and not _is_finite(site, value.shape[:own_dims]):
        return (
            f"site {name!r} observes infinite values, which have no density. Leave these rows out, "
            "or put a finite number in their place and mask them: with poutine.mask(mask=known), "
            "obs=y.where(known, 0.0)."
        )
    if not at_edges:
        return None
    for kind, (edges, remedy) in _EDGES_AND_ADVICE_BY_FAMILY.items():
        if not isinstance(fn, kind):
            continue
        num = sum(int((value == edge).sum()) for edge in edges)
        if not num or _is_finite(site, value.shape[:own_dims]):
            return None
        called = type(fn).__name__
        return (
            f"site {name!r} observes {num} values at the edge of the support of {called} "
            f"({' or '.join(f'{edge:g}' for edge in edges)}), where its density is zero or "
            f"infinite: no parameters fit them. Write {remedy.format(kind=called)}; or leave these "
            "rows out, or mask them, if they are errors."
        )
    return None


def _is_finite(site: Any, batch: torch.Size) -> bool:
    """Whether each observation has a density at some of the values that are summed over."""
    mask = site["mask"]
    log_prob: Tensor = batch_log_prob(site)
    if isinstance(mask, Tensor):
        log_prob = log_prob.where(mask, log_prob.new_zeros(()))
    log_prob = log_prob.nan_to_num(nan=math.inf, neginf=-math.inf, posinf=math.inf)
    for dim in range(log_prob.dim()):
        size = batch[dim - log_prob.dim()] if log_prob.dim() - dim <= len(batch) else 1
        if size == 1 != log_prob.shape[dim]:  # of other latents, draws or what is enumerated
            log_prob = log_prob.logsumexp(dim, keepdim=True)
    return mask is False or bool(log_prob.isfinite().all())
