"""A discrete latent that all data share: what was learned of it is in no guide."""

from __future__ import annotations

from typing import Any

from pyro_implicit.exceptions import SiteError

__all__ = ["choice_for_all", "is_choice_for_all"]


def is_choice_for_all(site: Any, but: str = "") -> bool:
    """
    Whether a site is a latent that is summed out and that no plate makes one of a row.

    :param site: a sample site that no guide draws.
    :param str but: the name of a plate of draws.
    :returns: whether drawing it from its prior would forget the data.
    """
    if site["is_observed"] or not site["infer"].get("enumerate"):
        return False
    if site.get("_intervener_id") is not None:  # poutine.do: no value of it is used
        return False
    return all(frame.name == but for frame in site["cond_indep_stack"])


def choice_for_all(name: str) -> SiteError:
    """
    The error for predictions from such a latent.

    :param str name: of the site.
    :returns: the error.
    """
    return SiteError(
        f"discrete latent {name!r} is summed out and in no plate: the data that the guide was "
        "fitted to tell of it, and a prediction would draw it from its prior. Draw it given these "
        "data by infer_discrete(poutine.replay(model, guide_trace), first_available_dim)(*data), "
        f"and predict with poutine.condition(model, data={{{name!r}: value}}); or put it into the "
        "plate of the rows, if each has its own. What needs no value of it works as it is: "
        "posterior_draws(guide, 1000), log_predictive_density(model, guide, *data) and "
        "to_arviz(model, guide, *data, groups=['posterior', 'log_likelihood'])."
    )
