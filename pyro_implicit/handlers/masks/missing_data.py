"""Observations that are NaN: which site has them, and how many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError

__all__ = ["missing_data", "refuse_missing_data"]


def missing_data(site: Any) -> str | None:
    """
    Says that a site observes NaN.

    :param site: a sample site with a value.
    :returns: what was found, and what to write instead; None if there is none.
    """
    value = site["value"]
    if not (site["is_observed"] and isinstance(value, Tensor) and value.is_floating_point()):
        return None
    bad = value.detach().isnan()
    count = int(bad.sum())
    if not count:
        return None
    first = tuple(int(i) for i in bad.nonzero()[0])
    return (
        f"site {site['name']!r} observes {count} NaN among its {bad.numel()} numbers, the first at "
        f"index {first}. Leave such rows out of all arguments, or mask them and put a number in "
        "their place: with poutine.mask(mask=~y.isnan()) and obs=y.nan_to_num()."
    )


def refuse_missing_data(site: Any, log_prob: Tensor) -> None:
    """
    Refuses observations that make a log-density NaN.

    :param site: an observed site.
    :param torch.Tensor log_prob: its log-density, of any shape, with a mask applied: what is masked
        does no harm.
    :raises NonFiniteError: naming the site and the number of its NaN.
    """
    if bool(torch.isnan(log_prob.detach()).any()):
        notes = missing_data(site)
        if notes is not None:
            raise NonFiniteError(notes)
