"""Latents of a model that its guide leaves out: each step draws them from their prior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro_implicit._few import few_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.pointwise import is_latent_of_model, latent_sites, run_model
from pyro_implicit.inference.from_prior import of_another_model

__all__ = ["warning_of_left_out"]


def warning_of_left_out(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """
    Says which latents of a model nothing is learned of.

    Those that are summed out, and those that ``poutine.do`` sets, are not among them.

    :param model: the model.
    :param guide: its guide, of any kind.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :returns: a text for a warning; empty if the guide draws all of them, or nobody can tell.
    :raises SiteError: if the guide draws some, and the model samples none of these.
    """
    left_out: list[str] = []
    met: set[str] = set()

    def visit(site: Any) -> None:
        met.add(site["name"])
        replaced = site.get("_intervener_id") is not None or site["infer"].get("enumerate")
        if is_latent_of_model(site) and not (site["name"] in draws or replaced):
            left_out.append(site["name"])

    try:
        with unseen_run():
            draws = {n: one["value"] for n, one in latent_sites(guide, args, dict(kwargs)).items()}
            run_model(model, args, kwargs, visit, values=draws)
    except Exception:  # what a model does with another draw than those of the steps
        return ""
    if draws and not met & draws.keys():
        raise of_another_model(draws)
    if not left_out:
        return ""
    names = few_of([repr(name) for name in sorted(left_out)])
    return (
        f"the guide does not draw {names}, which the model samples: each step draws them from "
        "their prior, and nothing is learned of them. Let the guide draw every latent of the "
        "model, under the same name; poutine.block(model, hide=[...]) says that this is meant"
    )
