"""Latents of a guide that its model holds at one value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyro_implicit._few import few_of
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.pointwise import is_delta, run_model

__all__ = ["refuse_held_latents"]


def refuse_held_latents(
    call: str, model: Any, latents: Collection[str], args: Any, kwargs: Mapping[str, Any]
) -> None:
    """
    Refuses a model that observes what the guide draws, as within ``poutine.condition``.

    Its density at the guide's draws would be that of the model without it.

    :param str call: the name of the function that was called.
    :param model: a Pyro model.
    :param latents: names of the guide's latents.
    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :raises SiteError: naming these latents.
    """
    held: list[str] = []

    def visit(site: Any) -> None:
        if site["name"] in latents and site["is_observed"] and not is_delta(site):
            held.append(site["name"])

    try:
        with unseen_run():
            run_model(model, args, kwargs, visit)
    except Exception:  # whatever a model does at draws of its prior
        return
    if held:
        raise SiteError(
            f"the guide draws {few_of(list(map(repr, held)))}, which the model observes or holds "
            f"(poutine.condition): {call} would judge the guide by the model without that. Hand "
            "over the model that the guide was fitted to, or fit a guide to this one."
        )
