"""What a model has to sample: its latents on all data, and where they may begin."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import init_to_median
from pyro.infer.autoguide.initialization import InitMessenger, init_to_sample
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._few import few_of
from pyro_implicit._random import RandomStream
from pyro_implicit._warn import warn
from pyro_implicit.chains.supports import check_supports
from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.initialization.prototype import (
    forgiving,
    is_summed_out,
    unconstrained_start,
)
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.observations.data_use import DataUse
from pyro_implicit.handlers.observations.observed_shape import warning_of_one_for_all
from pyro_implicit.handlers.pointwise import is_auxiliary
from pyro_implicit.handlers.supports.served_supports import cut_off

__all__ = ["dispersed_start", "latent_shapes", "read_latents"]

Model = Callable[..., Any]
_DRAWS_FOR_PRIOR_MEDIAN = 501  # so many that all chains do not share the luck of a few


def read_latents(
    model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[LatentSite], Tensor]:
    """
    Reads the latent sites of a model off one run.

    :param model: a Pyro model.
    :param args: its arguments, all data.
    :param kwargs: its keyword arguments.
    :returns: the sites, and the medians of their priors in the unconstrained space, shape ``(m,)``.
    :raises SiteError: if there is none, or none with a number, a discrete one, a plate that shows
        some of its rows, or one whose support another latent decides.
    """
    trace = _run(model, partial(init_to_median, num_samples=_DRAWS_FOR_PRIOR_MEDIAN), args, kwargs)
    for name, node in trace.nodes.items():
        if node["type"] == "sample":
            _check_all_rows(name, node)
    nodes = _latents(trace)
    if not nodes:
        raise SiteError(
            "the model has no latent site to sample: every sample statement is observed or hidden. "
            "Write a latent pyro.sample(...) without obs=."
        )
    if args or kwargs:
        _warn_if_nothing_is_observed(trace)
    if not sum(node["value"].numel() for node in nodes):
        names = few_of([repr(node["name"]) for node in nodes])
        raise SiteError(
            f"the latents {names} of the model have no numbers: there is nothing to sample."
        )
    sites = [LatentSite.from_trace(node, False) for node in nodes]
    check_supports(model, sites, args, kwargs)
    return sites, _flat(sites, trace)


def latent_shapes(
    model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, tuple[int, ...]]:
    """
    Reads the shapes of a model's latents off one run, which moves no random numbers.

    :param model: a Pyro model.
    :param args: its arguments, all data.
    :param kwargs: its keyword arguments.
    :returns: by site, in the order of the run.
    """
    with RandomStream(0):
        trace = _run(model, init_to_sample, args, kwargs)
    nodes = _latents(trace)
    return {node["name"]: tuple(node["value"].shape) for node in nodes}


def dispersed_start(
    model: Model,
    sites: list[LatentSite],
    centre: Tensor,
    dispersion: float,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """
    Draws a place to begin: between the prior's median and a draw of it.

    :param model: the model.
    :param sites: its latents.
    :param torch.Tensor centre: the medians, shape ``(m,)``.
    :param float dispersion: 0 for the median, 1 for the draw.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    :returns: shape ``(m,)``. Latents that cannot be drawn are normal about their centre.
    :raises SiteError: if the model does not sample one of them in this run.
    """
    drawn = _flat(sites, _run(model, init_to_sample, args, kwargs)).to(centre)
    noise = torch.randn_like(drawn)
    start = centre + dispersion * (drawn - centre)  # theory/chains.md (mode-start)
    still = (drawn == centre) | ~drawn.isfinite()
    return torch.where(still, centre + dispersion * noise, start)


def _run(model: Model, init: Callable[..., Tensor], args: Any, kwargs: Any) -> Any:
    with torch.no_grad(), evaluation_mode(), poutine.block(), pyro.validation_enabled(False):
        initialised = InitMessenger(_continuous(forgiving(init)))(model)
        return poutine.trace(initialised).get_trace(*args, **kwargs)


def _latents(trace: Any) -> list[dict[str, Any]]:
    """The latents that chains move: all but those that are summed out."""
    nodes = [node for _, node in trace.iter_stochastic_nodes() if not site_is_subsample(node)]
    return [node for node in nodes if not is_summed_out(node)]


def _flat(sites: list[LatentSite], trace: Any) -> Tensor:
    absent = [site.name for site in sites if site.name not in trace.nodes]
    if absent:
        raise SiteError(
            f"the model samples latent {absent[0]!r} in some of its runs alone, and a chain needs "
            "one density of the same latents at every step. Let it sample all of them in every "
            "run, those that are not used too."
        )
    values = [trace.nodes[site.name]["value"] for site in sites]
    return torch.cat([unconstrained_start(s, v) for s, v in zip(sites, values, strict=True)])


def _continuous(init: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An initialisation that refuses discrete latents."""

    def checked(site: Any) -> Tensor:
        try:
            discrete = site["fn"].support.is_discrete
        except NotImplementedError:  # told with the bijection that is missing
            discrete = False
        if discrete and not getattr(site["fn"], "has_enumerate_support", False):
            raise SiteError(
                f"latent site {site['name']!r} is discrete, and chains move by gradients, which it "
                f"has none of. {cut_off(site['name'], site['fn'])}"
            )
        if discrete and not is_summed_out(site):
            raise SiteError(
                f"latent site {site['name']!r} is discrete ({type(site['fn']).__name__}), and "
                "chains move by gradients, which it has none of. Mark it infer={'enumerate': "
                "'parallel'}, so that it is summed out, or sum it out in the model: write "
                "dist.MixtureSameFamily(dist.Categorical(probs), components) instead of an "
                "assignment to components, or pyro.factor with torch.logsumexp over its values."
            )
        return init(site)

    return checked


def _warn_if_nothing_is_observed(trace: Any) -> None:
    use = DataUse()
    for node in trace.nodes.values():
        if node["type"] == "sample":
            use.note(node)
    said = use.nothing_observed("refine(model, 16, x, y)")
    observed = [trace.nodes[name] for name in trace.observation_nodes]
    one_for_all = [warning_of_one_for_all(node) for node in observed if not is_auxiliary(node)]
    for text in filter(None, [said, *one_for_all]):
        warn(text)  # of refine


def _check_all_rows(name: str, node: dict[str, Any]) -> None:
    for frame in node["cond_indep_stack"]:
        full = getattr(frame, "full_size", None) or frame.size
        if frame.size != full:
            raise SiteError(
                f"plate {frame.name!r} around site {name!r} shows {frame.size} of its {full} rows: "
                "a chain needs the density of all data at every step, and the noise of minibatches "
                "would make it sample from another one. Pass all rows, and write "
                f"pyro.plate({frame.name!r}, {full}) or subsample_size=len(x). For data that do "
                "not fit, train a guide: fit(model, guide, batches=loader)."
            )
