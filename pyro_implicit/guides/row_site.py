"""A latent that every row of a plate has: what one row of it looks like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.latent_site import LatentSite, PlateFrame
from pyro_implicit.guides.parts import check_parts
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.handlers.supports.served_supports import check_support, map_support

__all__ = ["read_row_site"]


def read_row_site(node: dict[str, Any]) -> tuple[LatentSite, Tensor]:
    """
    Reads a latent site of each row from a prototype trace.

    :param dict node: a latent site of a prototype trace.
    :returns: the site of one row (its shape is the event shape; its one frame is the plate of the
        rows), and its flat unconstrained initial value, that of the first row.
    :raises SiteError: unless it is in exactly one plate, with a support that guides serve and that
        all rows share.
    """
    name, fn, value = node["name"], node["fn"], node["value"].detach()
    check_support(name, fn)
    frames = [f for f in node["cond_indep_stack"] if f.vectorized]
    if len(frames) != 1:
        found = f"in plates {[f.name for f in frames]}" if frames else "in no plate"
        raise SiteError(
            f"latent site {name!r} is {found}; a conditional guide serves latents that are in one "
            "plate, that of the rows. Draw it there (BayesianModule(..., local=True), called "
            f"inside the data plate), or hide it with poutine.block(model, hide=[{name!r}]) and "
            "give it a guide of its own in an AutoGuideList."
        )
    frame = PlateFrame(
        frames[0].name, frames[0].dim, frames[0].size, frames[0].full_size or frames[0].size
    )
    event_shape = fn.event_shape
    batch = value.shape[: value.dim() - len(event_shape)]
    check_parts({"": torch.Size(event_shape).numel()})
    if batch.numel() != frame.size:
        raise SiteError(
            f"latent site {name!r} has batch shape {tuple(batch)} in plate {frame.name!r} of "
            f"{frame.size} rows; expected no other batch dimension. Did you forget .to_event(...)?"
        )
    support = map_support(own_support(fn), lambda bound: _of_one_row(name, bound, len(event_shape)))
    site = LatentSite(name, event_shape, len(event_shape), support, (frame,))
    first = value.reshape(-1, *event_shape)[0]
    return site, site.invert(first)


def _of_one_row(name: str, bound: Any, event_dim: int) -> Any:
    """A bound of a support without the dimensions of the rows."""
    if not isinstance(bound, Tensor):
        return bound
    bound = bound.detach().clone()  # which no parameter moves
    if bound.dim() <= event_dim:
        return bound
    rows = bound.reshape(-1, *bound.shape[bound.dim() - event_dim :])
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise SiteError(
            f"latent site {name!r} has a support that differs between rows; a conditional guide "
            "maps all rows by one transform. Draw a latent on a fixed support and rescale it."
        )
    return rows[0]
