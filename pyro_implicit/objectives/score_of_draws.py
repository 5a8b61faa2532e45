"""An entropy whose gradient goes through the draws alone, by a score at them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.path_gradient import through_draws

__all__ = ["entropy_by_score"]


def entropy_by_score(
    site: ImplicitSite, log_density: Callable[[ImplicitSite], Tensor], value: Tensor | None = None
) -> Tensor:
    r"""
    An entropy with the path gradient :math:`-\nabla_x \log q(x)^\top dx`.

    The gradient of ``log q`` with respect to the parameters at a fixed draw is left out: its mean
    is 0 for the true density, and only noise for an estimate.

    :param ImplicitSite site: a site with its draws.
    :param log_density: of a site, differentiable with respect to its draws, shape ``batch``.
    :param torch.Tensor value: what is reported, shape ``batch``; by default minus the log-density.
    :returns: shape ``batch``.
    """
    with torch.enable_grad():
        leaf = site.value.detach().requires_grad_()
        log_q = log_density(site.with_draws(site.distribution, leaf))
        (score,) = torch.autograd.grad(log_q.sum(), leaf)
    return through_draws(-log_q if value is None else value, site.value, score)
