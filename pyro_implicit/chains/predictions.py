"""What each draw of some chains predicts, without the noise of the observations."""

# Shape legend: C chains, T draws of each.
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.pointwise import is_auxiliary, run_model
from pyro_implicit.handlers.rows.row_order import BY_NUMBER
from pyro_implicit.handlers.wrapped import base_distribution

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
    :raises SiteError: if there is no such site, a distribution knows no expectation, or has another
        one at each run, as where latents are summed out or rows are drawn.
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

    def run_at(chain: int, draw: int) -> None:
        values = {name: value[chain, draw] for name, value in draws.items()}
        run_model(model, args, kwargs, visit, values=values, order=BY_NUMBER)

    with RandomStream(1):
        run_at(0, 0)
    with RandomStream(0):
        first, rows = rows, {}
        run_at(0, 0)
        _refuse_random(first, rows)
        rows.clear()
        for chain, draw in product(range(num_chains), range(num_draws)):
            run_at(chain, draw)
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


def _refuse_random(first: dict[str, list[Tensor]], second: dict[str, list[Tensor]]) -> None:
    """Two runs at the same draw: what differs would hide that chains do."""
    for name in first.keys() & second.keys():
        one, other = first[name][0], second[name][0]
        if one.shape != other.shape or not torch.equal(one.nan_to_num(), other.nan_to_num()):
            raise SiteError(
                f"site {name!r} has another expectation at each run of the model at a draw: "
                "it depends on latents that are summed out, on rows that a plate draws, or on its "
                "own noise. Hand over the rows; write a mixture as MixtureSameFamily, or its "
                "expectation as pyro.deterministic('mean', ...) and sites=['mean']."
            )


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
