"""Latents that a guide leaves out, and that nobody has asked to draw from their prior."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.held_data import (
    is_made_for,
    model_of,
    observed_when_built,
    sampled_when_built,
    sites_when_built,
)
from pyro_implicit.handlers.looks.upstream import upstream_sites
from pyro_implicit.handlers.pointwise import run_model
from pyro_implicit.inference.run_plan import RunPlan

__all__ = ["came_from_prior", "forgotten_latents", "forgotten_of", "of_another_model"]

_ADVICE_ON_FORECASTS = (
    " Data that were passed have been drawn anew too: to predict what follows from them (a "
    "forecast, a part that is missing), hold them, predict(poutine.condition(model, "
    "data={'y': y}), guide, ...)."
)


def of_another_model(names: Collection[str]) -> SiteError:
    """
    The error of a guide that draws nothing of a model.

    :param names: of its latents.
    :returns: the error to raise.
    """
    return SiteError(
        f"the guide draws {sorted(names)}, none of which the model samples: predictions would come "
        "from its prior. Pass the model that the guide was fitted to, with the same names "
        "(BayesianModule(..., name=...) gives them a prefix)."
    )


def came_from_prior(
    names: Collection[str], unknown: Collection[str] = (), *, drawn_anew: bool = False
) -> str:
    """
    Says which latents the guide did not draw.

    :param names: of these latents.
    :param unknown: names of latents that the guide draws and the model does not sample.
    :param bool drawn_anew: whether data were passed, and drawn anew.
    :returns: a text for a warning; empty if there are none.
    """
    if not names:
        return ""
    others = (
        f" The guide draws {sorted(unknown)}, which the model does not sample." if unknown else ""
    )
    return (
        f"the guide does not draw {sorted(names)}, which the model samples: they "
        f"came from their prior, as if nothing had been learned of them.{others} Expected a "
        "draw of each latent of the model, under the same name." + _ADVICE_ON_FORECASTS * drawn_anew
    )


def forgotten_of(model: Callable[..., Any], guide: Any, names: Collection[str]) -> set[str]:
    """
    Tells latents that a guide leaves out from what is new since it was built.

    The state of a series at a time to come is drawn from its prior given what the guide draws, and
    so it should be. Nor is forgotten what was observed when the guide was built.

    :param model: the model.
    :param guide: the guide.
    :param names: of latents that the guide does not draw.
    :returns: those that the model had, or may have had, when the guide was built.
    """
    known = sampled_when_built(model, guide)
    left = set(names) - observed_when_built(guide)
    return left if known is None else left & known


def forgotten_latents(
    model: Callable[..., Any],
    guide: Any,
    args: Any,
    kwargs: Any,
    plan: RunPlan,
    whole: tuple[Any, Any] | None = None,
) -> list[str]:
    """
    Tells latents that the guide leaves out from observations that are to be predicted.

    With data, all that is not observed is a latent, unless it was observed when the guide was
    built, or was not there at all and does not follow from data. Without, it is what other sites
    are a function of, and what the model that the guide was made for does not sample: that one
    observes a series of observations, each given the one before. A guide that tells neither its
    model nor that model's sites is believed, unless it draws latents that this one does not have.
    Sites that were asked for by name are left out.

    :param model: the model.
    :param guide: the guide.
    :param args: positional arguments of the model.
    :param kwargs: keyword arguments of the model.
    :param RunPlan plan: once the model was run.
    :param whole: all arguments, positional and by name, if these are some of their rows and the
        model may be run on all at once.
    :returns: names of the latents.
    """
    seen = observed_when_built(guide)
    free = [name for name, data in plan.free.items() if not data]
    free = [name for name in free if name not in (plan.sites or ()) and name not in seen]
    if any(plan.free.values()):
        forgotten = forgotten_of(model, guide, free)
        calls = [(args, kwargs), *([] if whole is None else [whole])]
        if len(forgotten) < len(free) and _follow_data(model, calls, plan, free):
            return sorted(free)
        return sorted(forgotten)
    own = model_of(guide)
    is_own = (own is None or own is model) and is_made_for(model, guide)
    if not free or len(plan.free) < 2 or is_own:
        return []
    one = {name: value[0] for name, value in plan.draws.items()}
    known = _sites_in_fit(guide, args, kwargs, one)
    parents = upstream_sites(model, args, kwargs, one)
    if parents is None or (known is None and set(plan.draws) <= plan.met):
        return []
    above = {name for one in parents.values() for name in one}
    return sorted(name for name in free if name in above and name not in (known or ()))


def _follow_data(
    model: Callable[..., Any],
    calls: Sequence[tuple[Any, Any]],
    plan: RunPlan,
    names: Collection[str],
) -> bool:
    """Whether sites depend, or may, on data that are drawn anew: it is no forecast from them."""
    one = {name: value[0] for name, value in plan.draws.items()}
    runs = (upstream_sites(model, args, kwargs, one) for args, kwargs in calls)
    parents = next((found for found in runs if found is not None), None)
    if parents is None:
        return True
    above, more = set[str](), set(names)
    while more:
        above |= more
        more = {parent for name in more for parent in parents.get(name, ())} - above
    return any(plan.free.get(name) for name in above)


def _sites_in_fit(guide: Any, args: Any, kwargs: Any, values: Any) -> set[str] | None:
    """Names of the sites of the guide's own model; None if nobody knows them."""
    own, names = model_of(guide), set[str]()
    known = sites_when_built(guide)
    if known is not None and (own is None or not is_made_for(own, guide)):  # loaded
        return set(known)
    if not callable(own):
        return None
    try:
        run_model(own, args, kwargs, lambda site: names.add(site["name"]), values=values)
    except Exception:  # whatever a model does with the arguments of another one
        return None
    return names
