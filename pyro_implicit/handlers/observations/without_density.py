"""Observations that no draw gives a density: NaN, and infinite ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.handlers.masks.missing_data import missing_data
from pyro_implicit.handlers.supports.support_edge import warning_of_edge
from pyro_implicit.handlers.wrapped import is_of_library

__all__ = ["refuse_data_without_density"]


def refuse_data_without_density(site: Any, log_prob: Tensor) -> None:
    """
    Refuses observations that make a log-density NaN, and infinite ones that have no density.

    A distribution of a user's own may have one at infinity, and none at some draws, such as that of
    a time that never comes.

    :param site: an observed site.
    :param torch.Tensor log_prob: its log-density, of any shape, with a mask applied: what is masked
        does no harm.
    :raises NonFiniteError: naming the site and the number of its NaN.
    """
    log_prob = log_prob.detach()
    if bool(log_prob.sum().isfinite()) or bool(log_prob.isfinite().all()):  # a sum is cheaper
        return
    has_nan = bool(log_prob.isnan().any())
    notes = missing_data(site) if has_nan else None
    if notes is None and is_of_library(site["fn"]):
        notes = warning_of_edge(site, at_edges=False)
    if notes is not None:
        raise NonFiniteError(notes)
