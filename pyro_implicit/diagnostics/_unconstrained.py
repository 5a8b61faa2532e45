"""Draws of a guide, or draws that are given, in the unconstrained space of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit._checks import check_callable, check_tensors
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.supports.served_supports import bounds_of
from pyro_implicit.inference.posterior_draws import draws_of

__all__ = ["constrained_draws", "unconstrained_draws"]


def constrained_draws(
    source: Any, num_samples: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tensor]:
    """
    Draws constrained values from a guide, or takes given ones.

    :param source: a guide, or draws by site, of which as many are taken, evenly spaced.
    :param int num_samples: how many.
    :param tuple args: arguments of the guide.
    :param dict kwargs: keyword arguments of the guide.
    :returns: by site, shape ``(num_samples, *site_shape)``.
    :raises ArgumentError: for anything else.
    :raises ShapeError: for too few draws.
    """
    if not isinstance(source, Mapping):
        check_callable("guide", source, "a guide, or draws by site ({name: tensor})")
        return draws_of(source, num_samples, *args, **kwargs)
    check_tensors("guide", source, "draws by site, {name: (n, *site_shape)}", dim=1)
    counts = {name: len(value) for name, value in source.items()}
    if not counts or min(counts.values()) < num_samples or len(set(counts.values())) > 1:
        raise ShapeError(
            f"there are {counts} draws by site; expected at least num_samples={num_samples}, "
            "as many for every site"
        )
    index = torch.linspace(0, min(counts.values()) - 1, num_samples).round().long()
    return {name: value.detach()[index.to(value.device)] for name, value in source.items()}


def unconstrained_draws(
    model: Callable[..., Any],
    draws: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[list[LatentSite], Tensor]:
    """
    Maps constrained draws of a model's latents to the real line.

    :param model: a Pyro model.
    :param dict draws: constrained draws by site, shape ``(n, *site_shape)``.
    :param tuple args: arguments of the model.
    :param dict kwargs: keyword arguments of the model.
    :returns: the model's latent sites, and the flat unconstrained draws, shape ``(n, m)``.
    :raises SiteError: if the model's latents are others than those drawn, or the support of one
        depends on another.
    """
    nodes = _nodes(model, draws, 0, args, kwargs)
    sites = [LatentSite.from_trace(node, False) for node in nodes.values()]
    count = len(next(iter(draws.values()), ()))
    if any(bounds_of(site.support) for site in sites):
        for index in {count // 2, count - 1}:
            others = _nodes(model, draws, index, args, kwargs)
            for site in sites:
                site.check_prior(others[site.name]["fn"], "at another of the draws")
    missing = sorted(set(draws) - {site.name for site in sites})
    if missing or not sites:
        raise SiteError(f"draws are given for sites {missing}, which the model does not have")
    columns = [
        site.transform().inv(draws[site.name]).reshape(len(draws[site.name]), site.numel)
        for site in sites
    ]
    return sites, torch.cat(columns, -1)


def _nodes(
    model: Callable[..., Any],
    draws: Mapping[str, Tensor],
    index: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The sites that are drawn, in a run of the model at one of the draws."""
    one = {name: value[index] for name, value in draws.items()}
    with torch.no_grad(), evaluation_mode(), poutine.block():
        trace = poutine.trace(poutine.condition(model, data=one)).get_trace(*args, **kwargs)
    found = trace.nodes.items()
    return {name: node for name, node in found if node["type"] == "sample" and name in draws}
