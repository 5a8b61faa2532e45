"""Supports that another latent decides, which chains would not leave."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_sample
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.initialization.prototype import forgiving
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.handlers.supports.served_supports import bounds_of

__all__ = ["check_supports", "check_supports_at", "evenly"]

Model = Callable[..., Any]
#: Of the prior, or of chains: what a model decides by `if` shows at some of them.
_NUM_DRAWS_CHECKED = 8
_WHERE_SUPPORTS_DIFFER = "where the other latents are elsewhere"


def check_supports(model: Model, sites: Sequence[LatentSite], args: Any, kwargs: Any) -> None:
    """
    Refuses supports that another latent decides: chains are mapped on those of one run.

    What is computed from a latent is found by following it, wherever the latents are; what the
    model decides in another way, by a comparison, where draws of the prior show it.

    :param model: a Pyro model.
    :param sites: its latents.
    :param args: its arguments, all data.
    :param kwargs: its keyword arguments.
    :raises SiteError: for such a support.
    """
    bounded = any(bounds_of(site.support) for site in sites)
    with RandomStream(0):
        for draw in range(_NUM_DRAWS_CHECKED if bounded else 1):
            trace = _run(model, forgiving(init_to_sample), args, kwargs)
            if trace is None:
                continue
            if not draw:
                _check_followed(model, sites, trace, args, kwargs)
            _check_run(sites, trace)


def check_supports_at(
    model: Model, sites: Sequence[LatentSite], points: Tensor, args: Any, kwargs: Any
) -> None:
    """
    Refuses supports that are others where chains are or were, at a few of the points.

    :param model: a Pyro model.
    :param sites: its latents.
    :param torch.Tensor points: unconstrained, shape ``(N, m)``.
    :param args: its arguments, all data.
    :param kwargs: its keyword arguments.
    :raises SiteError: for such a support.
    """
    if not any(bounds_of(site.support) for site in sites):
        return
    for point in evenly(points, _NUM_DRAWS_CHECKED):
        flat = point.split([site.numel for site in sites])
        values = {s.name: s.value(s.unpack(part)) for s, part in zip(sites, flat, strict=True)}
        trace = _run(model, partial(_given, values), args, kwargs)
        if trace is not None:
            _check_run(sites, trace)


def evenly(points: Tensor, most: int) -> Tensor:
    """
    Some of the points, evenly spaced, the last among them.

    :param torch.Tensor points: shape ``(N, m)``.
    :param int most: how many.
    :returns: shape ``(n, m)``.
    """
    count = min(most, len(points))
    return points[[(i + 1) * len(points) // count - 1 for i in range(count)]]


def _check_run(sites: Sequence[LatentSite], trace: Any) -> None:
    for site in sites:
        if site.name in trace:
            site.check_prior(trace.nodes[site.name]["fn"], _WHERE_SUPPORTS_DIFFER)


def _check_followed(
    model: Model, sites: Sequence[LatentSite], trace: Any, args: Any, kwargs: Any
) -> None:
    """Follows each latent to the bounds that are computed from it."""
    names = [site.name for site in sites if site.name in trace]
    leaves = {n: trace.nodes[n]["value"].detach().clone().requires_grad_() for n in names}
    followed = _run(model, partial(_given, leaves), args, kwargs, follow=True)
    for site in sites if followed is not None else ():
        bounds = (
            bounds_of(own_support(followed.nodes[site.name]["fn"])) if site.name in followed else []
        )
        bounds = [one for one in bounds if isinstance(one, Tensor) and one.requires_grad]
        for bound in bounds:
            found = torch.autograd.grad(
                bound.sum(), list(leaves.values()), retain_graph=True, allow_unused=True
            )
            by = [name for name, one in zip(leaves, found, strict=True) if one is not None]
            if by:
                raise SiteError(
                    f"the support of latent site {site.name!r} is computed from latent {by[0]!r}: "
                    "it depends on another latent, and chains are mapped on one support, which "
                    "they would not leave. Draw a latent on a fixed support and rescale it in the "
                    f"model, such as u = pyro.sample('{site.name}_unit', dist.Uniform(0.0, 1.0)), "
                    f"{site.name} = pyro.deterministic('{site.name}', low + (high - low) * u)."
                )


def _run(
    model: Model, init: Callable[..., Tensor], args: Any, kwargs: Any, follow: bool = False
) -> Any:
    """One run with such latents; None where the model makes nothing of them."""
    with torch.set_grad_enabled(follow), evaluation_mode(), poutine.block():
        try:
            with pyro.validation_enabled(False):
                return poutine.trace(InitMessenger(init)(model)).get_trace(*args, **kwargs)
        except Exception:  # what a model makes of draws of its prior is no reason to refuse it
            return None


def _given(values: dict[str, Tensor], site: dict[str, Any]) -> Tensor:
    """The value of a site; a draw of those that chains do not move."""
    return values[site["name"]] if site["name"] in values else forgiving(init_to_sample)(site)
