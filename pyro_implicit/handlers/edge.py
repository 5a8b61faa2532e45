"""Observations at the edge of a support, where a density is zero or infinite."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit.handlers.pointwise import batch_log_prob

__all__ = ["told_of_edge"]

#: by distribution: its edges, and what to write for data that have many there
_EDGES: dict[type, tuple[tuple[float, ...], str]] = {
    dist.Gamma: ((0.0,), "a Bernoulli that tells zeros from the rest, and the Gamma for the rest"),
    dist.Beta: (
        (0.0, 1.0),
        "a Categorical that tells zeros and ones from the rest, and the Beta for the rest",
    ),
}


def told_of_edge(site: Any) -> str | None:
    """
    Tells of observations that have no likelihood although the support has them.

    A ``Gamma`` has 0 in its support, and there a density that is zero or infinite, unless its
    concentration is 1.

    :param site: the message of an observed site.
    :returns: what is wrong and what to write, for an error; None for all others.
    """
    fn, value = site["fn"], site["value"]
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution)):
        fn = fn.base_dist
    for kind, (edges, remedy) in _EDGES.items():
        if not isinstance(fn, kind):
            continue
        num = sum(int((value == edge).sum()) for edge in edges)
        if not num or _is_finite(site):
            return None
        return (
            f"site {site['name']!r} observes {num} values at the edge of the support of "
            f"{kind.__name__} ({' or '.join(f'{edge:g}' for edge in edges)}), where its density "
            f"is zero or infinite: no parameters fit them. Write {remedy}; or leave these rows "
            "out, or mask them, if they are errors."
        )
    return None


def _is_finite(site: Any) -> bool:
    mask = site["mask"]
    log_prob: Tensor = batch_log_prob(site)
    if isinstance(mask, Tensor):
        log_prob = log_prob.where(mask, log_prob.new_zeros(()))
    return mask is False or bool(log_prob.isfinite().all())
