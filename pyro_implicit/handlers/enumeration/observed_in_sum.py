"""What a sum over discrete latents has of data, and of sites that nobody fixes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.masks.hidden_observations import HIDDEN_SUFFIX
from pyro_implicit.handlers.pointwise import counted, is_auxiliary, is_delta

__all__ = ["counted_in_sum", "data_in_sum", "refuse_undrawn"]

_ADVICE_ON_OBS_MASK = (
    ". What obs_mask hides is integrated out where nothing else depends on it, and here something "
    "does; write rows that are missing with poutine.mask in place of obs_mask, or without them"
)


def data_in_sum(site: Any) -> list[Any]:
    """
    The sites of data that a marginal factor stands for.

    :param site: a factor that :func:`~pyro_implicit.handlers.enumeration.sum_out.sum_out` made.
    :returns: its observed sites, without point masses and ``pyro.factor``.
    """
    nodes = site["infer"]["marginal_nodes"]
    observed = [node for node in nodes if node["is_observed"]]
    return [node for node in observed if not (is_delta(node) or is_auxiliary(node))]


def counted_in_sum(site: Any, shape: torch.Size) -> Tensor:
    """
    Whether each datum of a marginal factor has an observation that is not masked.

    Under any values of the latents: masks may follow them.

    :param site: a factor that :func:`~pyro_implicit.handlers.enumeration.sum_out.sum_out` made.
    :param torch.Size shape: of its log-densities by datum.
    :returns: flags of that shape.
    """
    plates = {frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    kept = torch.zeros(shape, dtype=torch.bool, device=site["value"].device)
    for node in data_in_sum(site):
        notes = counted(node, keepdim=True)
        others = [dim for dim in range(-notes.dim(), 0) if dim not in plates]
        notes = notes.sum(others, keepdim=True) > 0 if others else notes
        kept = kept | notes.reshape(notes.shape[max(notes.dim() - len(shape), 0) :])
    return kept


def refuse_undrawn(site: Any, drawn: Collection[str], instead: str = "") -> None:
    """
    Refuses a sum that has data, and a latent that is neither summed out nor given.

    Its density, at whatever the prior drew, would count as one of data.

    :param site: a factor that :func:`~pyro_implicit.handlers.enumeration.sum_out.sum_out` made.
    :param drawn: names of the latents that are given.
    :param str instead: what else can be done, after "add them to the guide".
    :raises SiteError: if there is one, naming it.
    """
    unknown = [
        node["name"]
        for node in site["infer"]["marginal_nodes"]
        if not node["is_observed"]
        and node["infer"].get("_enumerate_dim") is None
        and node["name"] not in drawn
    ]
    data = [node["name"] for node in data_in_sum(site)]
    if not (unknown and data):
        return
    hidden = any(name.endswith(HIDDEN_SUFFIX) for name in unknown)
    raise SiteError(
        f"the log-likelihood of {', '.join(data)} depends on {unknown}, which share a discrete "
        f"latent with it and which the guide does not draw; add them to the guide{instead}"
        f"{_ADVICE_ON_OBS_MASK if hidden else ''}"
    )
