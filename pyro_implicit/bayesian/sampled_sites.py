"""Whether a model samples the sites that a prior stands in for."""

from __future__ import annotations

from collections.abc import Sequence

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import SiteError

__all__ = ["check_met"]


def check_met(names: Sequence[str], seen: Sequence[str], remedy: str) -> None:
    """
    Refuses a model that samples none of a prior's sites, and tells of those that it leaves out.

    :param names: of the prior's sites.
    :param seen: of those that a run of the model sampled.
    :param str remedy: what to write if some are left out on purpose.
    :raises SiteError: if none was sampled.
    """
    missing = [name for name in names if name not in seen]
    if missing and not seen:
        raise SiteError(
            f"the prior has the sites {missing}, and the model samples none of them: its own "
            "priors would stay as they are. Use the model that the guide was fitted to, with the "
            "same names (BayesianModule(..., name=...) gives them a prefix)."
        )
    if missing:
        warn(
            f"the prior has the sites {missing}, which the model does not sample: what was learned "
            f"of them is of no use to it. {remedy}"
        )
