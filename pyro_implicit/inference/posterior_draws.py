"""Draws from any guide, as a dictionary of stacked tensors."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_guide, check_num_samples
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._random import RandomStream
from pyro_implicit._seeded import seeded
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.held_data import program_of
from pyro_implicit.guides.since_fit import replaced_since_fit
from pyro_implicit.handlers.held.held_sites import refuse_condition_around
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta, latent_sites, run_model

__all__ = ["draws_of", "posterior_draws"]


def posterior_draws(
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""
    Draws of a guide's latent sites, in the constrained space, without gradients.

    A guide with a method ``sample`` (those of this package) is asked for all draws at once and,
    unless it is conditional, never looks at the arguments; any other one (Pyro's autoguides,
    ``AutoGuideList``, a function with ``pyro.sample`` statements) is run once per draw, and no
    trace is kept. Auxiliary sites, such as the joint latent of ``AutoMultivariateNormal``, observed
    sites and the subsample sites of plates are left out. Networks of the guide are evaluated in
    evaluation mode and keep their own (random layers that this silences are named in a warning).

    Example::

        draws = posterior_draws(guide, 1000, x, y)
        draws["sigma"].mean(0)

    :param callable guide: a guide, fitted or not.
    :param args: arguments of the guide (those of its model), after the number of draws if that is
        not given by name.
    :param int num_samples: how many draws, at least 1.
    :param int seed: of the draws, which then leave the global random numbers alone; by default
        these are drawn from.
    :param kwargs: keyword arguments of the guide.
    :returns: ``{site: tensor}``, each of shape ``(num_samples, *shape of the site)``.
    :raises ArgumentError: if ``num_samples`` is not a positive integer, ``seed`` no seed, or
        ``guide`` no guide; for an option that is none of this function, nor of the guide's model.
    :raises NonFiniteError: for a guide with a parameter that is NaN.
    :raises SiteError: if the guide has no latent site, or not the same ones in each run; within
        ``with poutine.condition(...):``.
    :raises ShapeError: if a site changes its shape from run to run, or has a value for each row and
        the guide would choose some of them at random.
    :warns UserWarning: if Pyro's store has given the guide the parameters of another one since its
        own fit ended; if it is a function that observes data.
    """
    refuse_condition_around("posterior_draws", has_model=False)
    check_guide(guide)
    check_misspelt(posterior_draws, program_of(guide), kwargs)
    if num_samples is None:
        num_samples, *rest = args or (None,)
        args = tuple(rest)
    num_samples = check_num_samples("posterior_draws(guide, ...", num_samples)
    with seeded(seed):
        draws = draws_of(guide, num_samples, *args, **kwargs)
    for text in [*replaced_since_fit(guide), *_warning_of_observed(guide, args, kwargs)]:
        warn(text)
    return draws


def _warning_of_observed(
    guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Of a function that observes data, which may be the model in the place of the guide."""
    observed: list[str] = []

    def visit(site: Any) -> None:
        if site["is_observed"] and not (is_auxiliary(site) or is_delta(site)):
            observed.append(site["name"])

    if not isinstance(guide, FunctionType):
        return []
    with RandomStream(0):
        run_model(guide, args, kwargs, visit)
    if not observed:
        return []
    return [
        f"the guide observes {sorted(observed)}, as a model does: draws of a model are those of "
        "its prior. Hand over the guide that was fitted."
    ]


def draws_of(
    guide: Callable[..., Any], num_samples: int, *args: Any, **kwargs: Any
) -> dict[str, Tensor]:
    """
    :func:`posterior_draws`, for callers that tell by themselves of what happened since a fit.

    :param callable guide: a guide, fitted or not.
    :param int num_samples: how many draws, at least 1.
    :param args: arguments of the guide.
    :param kwargs: keyword arguments of the guide.
    :returns: ``{site: tensor}``.
    :raises ArgumentError: see :func:`posterior_draws`, as for the rest.
    """
    check_guide(guide)
    refuse_diverged(guide)
    num_samples = check_count("num_samples", num_samples)
    sample = getattr(guide, "sample", None)
    with torch.no_grad(), evaluation_mode():
        if callable(sample):
            looks = isinstance(guide, ImplicitGuide) or hasattr(guide, "sample_takes_arguments")
            given = (args, kwargs) if looks else ((), {})
            drawn = sample(num_samples, *given[0], **given[1])
            return {name: value.detach() for name, value in drawn.items()}
        return _looped(guide, num_samples, args, kwargs)


def _looped(
    guide: Callable[..., Any], num_samples: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tensor]:
    """One run of the guide per draw, written into tensors made after the first."""
    draws: dict[str, Tensor] = {}
    for s in range(num_samples):
        values = {n: site["value"] for n, site in latent_sites(guide, args, kwargs).items()}
        if s == 0:
            draws = {n: v.new_empty((num_samples, *v.shape)) for n, v in values.items()}
        _check_same(draws, values)
        for name, value in values.items():
            draws[name][s] = value
    return draws


def _check_same(draws: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Every run must fit the first."""
    if not values:
        raise SiteError(
            "the guide has no latent sample site (observed and auxiliary ones do not count); "
            "expected a guide that samples at least one of the model's latents"
        )
    if draws.keys() != values.keys():
        changed = sorted(draws.keys() ^ values.keys())
        raise SiteError(
            f"sites {changed} appear in some runs of the guide and not in others; draws can only "
            "be stacked when each run has the same latent sites"
        )
    for name, value in values.items():
        if draws[name].shape[1:] != value.shape:
            raise ShapeError(
                f"site {name!r} had shape {tuple(draws[name].shape[1:])} in the first run of the "
                f"guide and {tuple(value.shape)} in a later one; draws can only be stacked when "
                "the shape stays the same"
            )
