"""The densities of the model and of the guide at each draw, for importance weights in ArviZ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from pyro_implicit.arviz.site import Slot
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.values import unconstrain
from pyro_implicit.handlers.log_joint import LogJoint

__all__ = ["SLOTS_OF_DENSITIES", "check_densities", "densities"]

#: the variables of the group ``sample_stats``
SLOTS_OF_DENSITIES = {name: Slot((), torch.float64, ()) for name in ("lp", "log_q")}


def check_densities(guides: list[Any], chosen: tuple[str, ...], restarts: bool) -> ImplicitGuide:
    """
    Returns the one guide whose densities can be told.

    :param guides: the guides to export.
    :param tuple chosen: the groups that are made.
    :param bool restarts: whether they are restarts.
    :raises ArgumentError: for restarts, for a guide without a density, and without the draws.
    """
    if "posterior" not in chosen:
        raise ArgumentError(
            "group 'sample_stats' holds the densities at the draws of 'posterior', which is not "
            "among the groups; write groups=('posterior', 'sample_stats', ...)."
        )
    guide = guides[0]
    if restarts or not isinstance(guide, ImplicitGuide) or not guide.is_bijective:
        found = "a list of guides" if restarts else f"a {type(guide).__name__} without a density"
        raise ArgumentError(
            f"group 'sample_stats' holds the densities of one bijective guide; found {found}. "
            "Leave the group out, or use HyperNetworkGuide(model, "
            "generator=AutoregressiveGenerator)."
        )
    return guide


@torch.no_grad()
def densities(
    model: Callable[..., Any],
    guide: ImplicitGuide,
    draws: Mapping[str, np.ndarray],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, np.ndarray]:
    """
    Evaluates both densities in the unconstrained space, where their ratio is the same as outside.

    :param model: the model.
    :param guide: a bijective guide.
    :param dict draws: constrained draws by site, shape ``(1, n, *site_shape)``.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    :returns: ``lp``, the log-joint, and ``log_q``, shape ``(1, n)``.
    """
    sampler: Any = guide.samplers[0]
    like = sampler.preconditioner.loc
    values = {site.name: torch.from_numpy(draws[site.name][0]).to(like) for site in guide.sites}
    log_joint = LogJoint(model, guide.sites, args, kwargs)
    u, _ = unconstrain(values, guide.sites, like)
    values = log_joint.by_number(values, u[0])
    u, log_jacobian = unconstrain(values, guide.sites, like)
    log_q = guide.log_density(values) - log_jacobian
    lp = torch.stack([log_joint(row) for row in u])
    return {"lp": lp.double().cpu().numpy()[None], "log_q": log_q.double().cpu().numpy()[None]}
