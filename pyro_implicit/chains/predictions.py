"""What each draw of some chains predicts, without the noise of the observations."""

# Shape legend: C chains, T draws of each.
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.pointwise import (
    base_distribution,
    is_auxiliary,
    run_model,
)

__all__ = ["expectations"]


def expectations(
    model: Callable[..., Any],
    draws: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sites: Collection[str] | None,
) -> dict[str, Tensor]:
    """
    The expectation of each datum under each draw: its mean, or the probabilities of its classes.

    :param model: the model.
    :param dict draws: latents by site, shape ``(C, T, *shape)``.
    :param args: arguments of the model; observations may be left out.
    :param kwargs: keyword arguments of the model.
    :param sites: names of the sites to keep, deterministic ones included; None for all that are
        neither latent nor deterministic.
    :returns: by site, shape ``(C, T, *shape)``.
    :raises SiteError: if there is no such site, or a distribution knows no expectation.
    """
    num_chains, num_draws = next(iter(draws.values())).shape[:2]
    rows: dict[str, list[Tensor]] = {}

    def visit(site: Any) -> None:
        name = site["name"]
        if name in draws or is_auxiliary(site) or (sites is not None and name not in sites):
            return
        if site["infer"].get("_deterministic"):
            if sites is not None:
                rows.setdefault(name, []).append(site["value"])
        else:
            rows.setdefault(name, []).append(_expectation(name, site["fn"]))

    for chain in range(num_chains):
        for draw in range(num_draws):
            values = {name: value[chain, draw] for name, value in draws.items()}
            run_model(model, args, kwargs, visit, values=values)
    missing = sorted(set(sites or ()) - rows.keys())
    if missing or not rows:
        raise SiteError(
            f"sites {missing or 'that are observed or predicted'} are not in the model with these "
            "arguments, so there is nothing to compare the chains by."
        )
    return {
        name: torch.stack(values).reshape(num_chains, num_draws, *values[0].shape)
        for name, values in rows.items()
    }


def _expectation(name: str, fn: Any) -> Tensor:
    probs = getattr(base_distribution(fn), "probs", None)
    try:
        mean: Tensor | None = fn.mean
    except NotImplementedError:
        mean = None
    if mean is not None and bool(mean.isfinite().any()):
        return mean
    if isinstance(probs, Tensor):
        return probs
    raise SiteError(
        f"site {name!r} has a {type(fn).__name__}, whose expectation is not known. Name other "
        "sites, such as sites=['mean'] for pyro.deterministic('mean', ...)."
    )
