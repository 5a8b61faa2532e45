"""Observations that are NaN: which site has them, and how many."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["missing_data"]


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
