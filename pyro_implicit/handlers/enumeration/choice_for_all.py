"""A discrete latent that all data share: what was learned of it is in no guide."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyro_implicit.exceptions import SiteError

__all__ = [
    "choice_for_all",
    "choices_of_groups",
    "is_choice_for_all",
    "plates_of",
    "plates_of_size",
]

#: A value that is held by ``poutine.condition`` would be one for all draws of the guide, hence the
#: replay of each.
_ADVICE_ON_DRAWING_GIVEN_DATA = (
    "one value for each draw of the guide: predict with a guide of your own that draws the fitted "
    "one's latents, and it by infer_discrete(poutine.replay(model, trace_of_guide), "
    "first_available_dim)(*data). docs/howto/discrete.md has it (A discrete latent that all data "
    "share)."
)


def plates_of(site: Any) -> frozenset[str]:
    """
    The plates of a site.

    :param site: a sample site.
    :returns: their names.
    """
    return frozenset(frame.name for frame in site["cond_indep_stack"])


def plates_of_size(site: Any, size: int) -> frozenset[str]:
    """
    The plates of a site that have as many rows as the arguments have, and so may be theirs.

    :param site: a sample site.
    :param int size: the number of rows.
    :returns: their names.
    """
    frames = (frame for frame in site["cond_indep_stack"] if frame.vectorized)
    return frozenset(frame.name for frame in frames if frame.size == size)


def choices_of_groups(
    choices: Mapping[str, frozenset[str]],
    data: Iterable[frozenset[str]],
    rows: Collection[str] = (),
) -> str:
    """
    Says of discrete latents of groups, not of rows, that they are drawn anew.

    Groups are those that the data are told by an index, and those in a plate around that of the
    rows. Of latents in the plates of the data nothing is known where the rows are new.

    :param choices: names of the latents to be enumerated, with their plates.
    :param data: plates of each site to be predicted.
    :param rows: plates that may have the rows of the arguments; none if nobody knows.
    :returns: a text for a warning; empty without one.
    """
    seen = list(data)

    def is_of_groups(plates: frozenset[str]) -> bool:
        around = [one for one in seen if plates <= one]
        nested = bool(rows) and not plates & set(rows) and plates not in around
        return bool(plates and seen) and (not around or nested)

    names = sorted(name for name, plates in choices.items() if is_of_groups(plates))
    if not names:
        return ""
    return (
        f"discrete latents {names} are those of groups, and predictions draw them from their "
        "prior: right for new groups, and not for those of the data, of which these tell. Draw "
        f"them given the data, {_ADVICE_ON_DRAWING_GIVEN_DATA}"
    )


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
        f"data, {_ADVICE_ON_DRAWING_GIVEN_DATA} Or put it into the "
        "plate of the rows, if each has its own. (States to come, behind those that such a guide "
        "draws: predict with the model as it was before config_enumerate.) What needs no value of "
        "it works as it is: posterior_draws(guide, 1000), log_predictive_density(model, guide, "
        "*data), and the other groups of to_arviz(model, guide, *data)."
    )
