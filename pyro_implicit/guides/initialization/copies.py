r"""
How many copies of a Gaussian a network's posterior has: one for each order of its hidden units.

A posterior that has learned something has it in each order of the units, all alike. A guide is at
one of these copies, and its evidence bound is lower than that of all copies together by the
logarithm of their number. Weights that were given up to the prior are their own copies: among
bounds, nothing that was learned looks better than it is. For ``n`` copies the divergence of their
mixture from the prior, which has the same symmetry, is that of one, less ``log n`` and no less than
zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.gaussian_bound import gaussian_draws
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint

__all__ = ["Copies", "hidden_widths", "is_deep"]

_NUM_DRAWS = 32


def hidden_widths(sites: Sequence[LatentSite]) -> list[int]:
    """
    The widths of a network's hidden layers, as far as the shapes of its weights tell.

    Gates of a recurrent layer count as its units, and a layer between two wider ones as one of
    these, if nothing else tells it from them.

    :param sites: the latent sites, in order.
    :returns: for each two matrices that follow each other the largest dimension that both have.
    """
    shapes = [tuple(site.shape)[-site.event_dim :][:2] for site in sites if site.event_dim >= 2]
    shared = [set(one) & set(other) for one, other in zip(shapes[:-1], shapes[1:], strict=True)]
    return [max(dims) for dims in shared if dims]


def is_deep(sites: Sequence[LatentSite]) -> bool:
    """
    Whether a network has two hidden layers or more.

    With one, quick fits learn what there is to learn, and end higher than quiet ones from a draw of
    the prior (by half a nat after 4000 steps, on classes by six units).

    :param sites: the latent sites, in order.
    """
    return len(hidden_widths(sites)) > 1


class Copies:
    """
    What the copies of a Gaussian add to its evidence bound.

    :param LogJoint log_joint: the density of the model of a network.
    :param sites: its latent sites.
    """

    def __init__(self, log_joint: LogJoint, sites: Sequence[LatentSite]) -> None:
        self.log_joint = log_joint
        self.names = [site.name for site in sites]
        #: logarithm of the number of orders of hidden units
        self.log_number = sum(math.lgamma(width + 1) for width in hidden_widths(sites))

    def nats(self, loc: Tensor, factor: Tensor) -> float:
        """
        What is to be added to the evidence bound of a Gaussian.

        :param torch.Tensor loc: mean of a Gaussian, shape ``(m,)``.
        :param torch.Tensor factor: a root of its covariance, ``(m,)`` or ``(m, m)``.
        :returns: the logarithm of the number of copies, or the divergence from the prior if that is
            less.
        """
        return min(self.log_number, max(self._divergence(loc, factor), 0.0))

    @torch.no_grad()
    def _divergence(self, loc: Tensor, factor: Tensor) -> float:
        """From the prior, on fixed draws at which both densities are compared."""
        noise, draws, volume = gaussian_draws(loc, factor, _NUM_DRAWS)
        own = -0.5 * (noise.square() + math.log(2 * math.pi)).sum(-1) - volume
        return float((own - torch.stack([self._log_prior(u) for u in draws])).mean())

    def _log_prior(self, u: Tensor) -> Tensor:
        trace, correction = self.log_joint.trace(u)
        trace.compute_log_prob()
        total: Tensor = sum((trace.nodes[name]["log_prob_sum"] for name in self.names), correction)
        return total
