"""Observations of all rows that are one datum, as those of a Gaussian process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.distributions as td
from pyro.distributions import MultivariateStudentT

from pyro_implicit.handlers.enumeration.choice_for_all import plates_of_size
from pyro_implicit.handlers.wrapped import base_distribution

__all__ = ["is_joint_of_rows", "warning_of_joint_rows"]

_JOINT_FAMILIES = (td.MultivariateNormal, td.LowRankMultivariateNormal, MultivariateStudentT)


def is_joint_of_rows(site: Any, num_rows: int) -> bool:
    """
    Whether a site is a single draw of all rows, which depend on each other at given latents.

    :param site: a sample site.
    :param int num_rows: rows of the arguments.
    :returns: True for one with a covariance over as many entries, in no plate of as many.
    """
    fn = base_distribution(site["fn"])
    if num_rows < 2 or not isinstance(fn, _JOINT_FAMILIES) or fn.event_shape[-1] != num_rows:
        return False
    return not plates_of_size(site, num_rows)


def warning_of_joint_rows(names: Collection[str]) -> str:
    """
    Says that new rows know nothing of those of the fit.

    :param names: of sites that are one datum of all rows.
    :returns: a text for a warning; empty if there are none.
    """
    if not names:
        return ""
    return (
        f"{sorted(names)} is one datum of all rows, by a covariance of them, and these are other "
        "rows than those that the guide was built with: they are taken by themselves, as if "
        "nothing had been observed at those. Let the model take both, def model(x, y, new=None), "
        "observe y, and sample the new rows from their distribution given y (see Gaussian "
        "processes in the how-to of forecasts)."
    )
