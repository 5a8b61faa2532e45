"""Weights of draws from mixtures in the guide, by row of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import SiteError

__all__ = ["weights_of_rows"]


def weights_of_rows(log_weight: Any, log_prob: Tensor, name: str) -> Any:
    """
    Fits the weights of mixtures to the log-densities of a site.

    :param log_weight: see :attr:`~pyro_implicit.objectives.particles.particle.Particle.log_weight`.
    :param torch.Tensor log_prob: log-densities of a site, with the rows' dimensions.
    :param str name: the site.
    :returns: ``log_weight``, if its rows are those of ``log_prob``.
    :raises SiteError: if the site is not in the plate of the rows that the weights are of.
    """
    if isinstance(log_weight, Tensor):
        shapes = log_weight.shape, log_prob.shape
        if torch.broadcast_shapes(*shapes) != shapes[1]:
            raise SiteError(
                f"site {name!r} has log-probabilities of shape {tuple(shapes[1])}, and the guide "
                f"draws mixtures for rows of shape {tuple(shapes[0])}; each row's mixture must "
                "explain data of that row. Put the site inside the plate of the rows, or use "
                "num_components=1."
            )
    return log_weight
