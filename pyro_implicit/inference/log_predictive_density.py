"""The score of a fit on data that it has not seen: the log of the mean predictive density."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_guide, check_model, check_seed
from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration import (
    EnumerationNeeded,
    NoticeEnumeration,
    run_summed_out,
)
from pyro_implicit.handlers.own_subsample import OwnSubsample, sizes_of_arguments
from pyro_implicit.handlers.pointwise import (
    is_auxiliary,
    is_delta,
    latent_sites,
    pointwise_log_prob,
    run_model,
)
from pyro_implicit.handlers.sum_out import inseparable

__all__ = ["log_predictive_density"]


def log_predictive_density(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int,
    seed: int | None = None,
    **kwargs: Any,
) -> Tensor:
    r"""
    The log of the mean likelihood over draws of the guide, for each datum.

    :math:`\log \tfrac1S \sum_s p(y_i \mid \theta_s)` for each datum ``i`` of a batch, without any
    minibatch scale. Observed sites in the same plates are one datum.

    Draws are made one after the other, and of each only its densities are kept. In expectation the
    value rises with ``num_samples``: compare at the same number. Discrete latents that are marked
    for enumeration are summed out; what they join is one datum (a sequence of a hidden Markov
    model).

    :param model: a model whose arguments include the observations.
    :param guide: any guide; called with the same arguments.
    :param args: the arguments of both.
    :param int num_samples: draws ``S``.
    :param int seed: of the draws; batches of the same seed have the same ones, and random numbers
        outside go on as if nothing had been drawn. None: one that torch draws.
    :param kwargs: keyword arguments of both.
    :returns: shape ``(number of data,)``.
    :raises ArgumentError: if ``num_samples`` is no positive integer, ``seed`` no seed, or ``model``
        or ``guide`` nothing that can be run.
    :raises SiteError: if the model observes nothing with these arguments, or draws some rows of a
        plate at random; if the prior of a latent of the guide and data are within one sum over a
        discrete latent.
    """
    check_model(model)
    check_guide(guide)
    num_samples = check_count("num_samples", num_samples)
    seed = int(torch.randint(2**31, ())) if seed is None else check_seed("seed", seed)
    total: Tensor | None = None
    for index in range(num_samples):
        with RandomStream(seed + index):
            one = _log_densities(model, guide, args, kwargs)
        total = one if total is None else torch.logaddexp(total, one)
    assert total is not None
    return total - math.log(num_samples)


def _log_densities(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """The log-densities of all data under one draw."""
    latents = {name: site["value"] for name, site in latent_sites(guide, args, kwargs).items()}
    data: dict[Any, Tensor] = {}

    def visit(site: Any) -> None:
        marginal = site["infer"].get("marginal_of", ())  # sites that one density stands for
        if marginal:
            drawn = [name for name in marginal if name in latents]
            if drawn and len(drawn) < len(marginal):
                raise inseparable(drawn, site["name"])
        observed = site["is_observed"] and site["name"] not in latents
        if not observed or (is_auxiliary(site) and not marginal) or is_delta(site):
            return
        if marginal and all(name in latents for name in marginal):
            return
        frames = sorted(
            (f.name, None if f.vectorized else f.counter) for f in site["cond_indep_stack"]
        )
        value = pointwise_log_prob(site)
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        key = tuple(frames)
        data[key] = data[key] + value if key in data else value

    with OwnSubsample(sizes_of_arguments(args, kwargs)):
        try:
            with NoticeEnumeration():
                run_model(model, args, kwargs, visit, values=latents)
        except EnumerationNeeded:
            data.clear()
            run_summed_out(model, args, kwargs, visit, values=latents)
    if not data:
        raise SiteError(
            "the model observes nothing with these arguments, so there is no predictive density: "
            "a validation batch needs the observations too, as a training batch does."
        )
    return torch.cat([value.reshape(-1) for value in data.values()])
