"""Rows that a guide of Pyro has in the order of their numbers, and its model in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.pointwise import run_model
from pyro_implicit.handlers.rows.row_order import BY_NUMBER
from pyro_implicit.handlers.rows.row_slices import are_same_numbers

__all__ = ["warning_of_other_order"]


def warning_of_other_order(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """
    Says that an autoguide of Pyro learns latents of rows by place, and is read by number later.

    Its plate shows rows 0, 1, ..., which Pyro's objectives put in the model's place; the data stay
    in the order of the call, unless the model takes them by the plate's numbers. (Objectives of
    this package refuse the pair.)

    :param model: the model.
    :param guide: its guide, of any kind.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :returns: a text for a warning; empty if orders agree, or nobody can tell.
    """
    if isinstance(guide, ImplicitGuide) or not isinstance(guide, AutoGuide):
        return ""
    try:
        with unseen_run(evaluates=True), torch.no_grad():
            drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            own = poutine.trace(model).get_trace(*args, **kwargs)
            plates = [n for n in drawn.nodes if _is_in_other_order(n, drawn.nodes, own.nodes)]
            if not plates:
                return ""
            learned = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args, **kwargs)
            is_read_so = _is_read_so(model, learned, args, kwargs)
    except Exception:  # what a model does with another draw than those of the steps
        return ""
    if is_read_so:
        return ""
    return (
        f"plate {plates[0]!r} has its rows in another order in the model than in the guide: its "
        "latents are learned by their places and read by their numbers, so that predictions give "
        "each row those of another. Pass create_plates to the guide (a function of the model's "
        "arguments that returns the model's plate), or the rows in the order of their numbers"
    )


def _is_read_so(model: Any, learned: Any, args: Any, kwargs: Any) -> bool:
    """Whether data have the density that they are learned by where latents go by their numbers."""
    latents = [learned.nodes[name] for name in learned.stochastic_nodes]
    values = {one["name"]: one["value"] for one in latents if not site_is_subsample(one)}
    nodes = [learned.nodes[name] for name in learned.observation_nodes]
    expected = sum(_density_of(one) for one in nodes if not site_is_subsample(one))
    found: list[Tensor] = []

    def visit(site: Any) -> None:
        if site["is_observed"] and site["name"] not in values and not site_is_subsample(site):
            found.append(_density_of(site))

    run_model(model, args, kwargs, visit, values=values, order=BY_NUMBER)
    return bool(torch.allclose(torch.as_tensor(sum(found)), torch.as_tensor(expected)))


def _density_of(site: Any) -> Tensor:
    density: Tensor = site["fn"].log_prob(site["value"]).sum()
    return density


def _is_in_other_order(name: str, drawn: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    node, other = drawn[name], own.get(name)
    if other is None or node["type"] != "sample" or not site_is_subsample(node):
        return False
    has_latents = any(
        name in [frame.name for frame in one["cond_indep_stack"]]
        for one in drawn.values()
        if one["type"] == "sample" and not site_is_subsample(one)
    )
    is_whole = len(node["value"]) == len(other["value"]) == node["fn"].size
    return has_latents and is_whole and not are_same_numbers(node["value"], other["value"])
