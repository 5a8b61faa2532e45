"""Which groups can be made of a model and its arguments, and whether they fit in memory."""

from __future__ import annotations

from collections.abc import Sequence

from pyro_implicit._checks import check_names, check_number
from pyro_implicit._memory import free_memory
from pyro_implicit.arviz.collect import GUIDE_GROUPS, ExportPlan, nbytes
from pyro_implicit.arviz.program import Program
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.handlers.enumeration.choice_for_all import choice_for_all

__all__ = ["GROUPS", "NOTE_OF_PREDICTIVE", "check_size", "choose_groups"]

GROUPS = (
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    "sample_stats",
    "prior",
    "prior_predictive",
    "observed_data",
    "constant_data",
)

#: the attribute that tells why there are no predictions
NOTE_OF_PREDICTIVE = "posterior_predictive_omitted"

#: made only where it is asked for: it costs one more run of the model for each draw
GROUP_ON_REQUEST = "sample_stats"
#: whose runs of the model draw what it observes
_GROUPS_OF_DRAWN_DATA = ("posterior_predictive", "prior", "prior_predictive")


def choose_groups(
    program: Program,
    groups: Sequence[str] | None,
    has_constants: bool,
    has_statistics: bool = False,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """
    Chooses the groups that can be made.

    :param Program program: the model.
    :param groups: names asked for; ``None`` for all that can be made.
    :param bool has_constants: whether there is anything for ``constant_data``.
    :returns: the groups to make, and attributes that say what was left out and why.
    :raises ArgumentError: for unknown names, none, or a group that would be empty.
    :raises SiteError: for an ambiguous log-likelihood; for what was asked for and cannot be drawn:
        a prior, or predictions from a discrete latent that all data share.
    """
    empty = _empty_groups(program, has_constants)
    undrawable = [name for name, site in program.of_kind("latent").items() if not site.drawable]
    densities = [name for name, site in program.of_kind("observed").items() if not site.drawable]
    notes: dict[str, str] = {}
    if groups is None:
        left_out = set(empty) if has_statistics else {*empty, GROUP_ON_REQUEST}
        chosen = [group for group in GROUPS if group not in left_out]
        if undrawable:
            chosen = [group for group in chosen if not group.startswith("prior")]
            notes["prior_omitted"] = f"sites {undrawable} cannot be drawn from their prior"
        if "posterior_predictive" in chosen and program.choices_for_all:
            chosen.remove("posterior_predictive")
            notes[NOTE_OF_PREDICTIVE] = str(choice_for_all(next(iter(program.choices_for_all))))
        if densities:
            chosen = [group for group in chosen if group not in _GROUPS_OF_DRAWN_DATA]
            notes["prior_omitted"] = notes[NOTE_OF_PREDICTIVE] = _no_sample(densities)
    else:
        chosen = _checked_names(groups)
        for group in chosen:
            if group in empty:
                raise ArgumentError(f"group {group!r} would be empty: {empty[group]}")
            if undrawable and group.startswith("prior"):
                raise SiteError(
                    f"group {group!r} was asked for, but the prior of sites {undrawable} cannot be "
                    "drawn (an ImproperUniform has no samples); leave the group out, or give these "
                    "sites a proper prior"
                )
            if densities and group in _GROUPS_OF_DRAWN_DATA:
                raise SiteError(f"group {group!r} was asked for, but {_no_sample(densities)}")
    if "posterior_predictive" in chosen and program.choices_for_all:
        raise choice_for_all(next(iter(program.choices_for_all)))
    if "log_likelihood" in chosen:
        _check_likelihood(program, chosen)
    return tuple(chosen), notes


def _no_sample(densities: list[str]) -> str:
    return (
        f"the distribution of observed sites {densities} has no sample(), and without drawn data "
        f"there are no groups {' and '.join(_GROUPS_OF_DRAWN_DATA)}; posterior, log_likelihood and "
        "observed_data need none"
    )


def check_size(
    plan: ExportPlan, num_samples: int, max_bytes: float | None, num_restarts: int = 1
) -> None:
    """
    Refuses groups that do not fit into memory.

    :param dict plan: the variables of each group.
    :param int num_samples: how many draws.
    :param int max_bytes: limit for all groups together; ``None`` asks nothing.
    :param int num_restarts: how many guides.
    :raises ArgumentError: if they need more, or more than the machine has free.
    """
    if max_bytes is not None:
        max_bytes = check_number("max_bytes", max_bytes, above=0, why=", or None")
    counts = {"observed_data": 1} | {group: num_samples * num_restarts for group in GUIDE_GROUPS}
    sizes = {group: nbytes(slots, counts.get(group, num_samples)) for group, slots in plan.items()}
    total = sum(sizes.values())
    if max_bytes is None:
        return
    free = free_memory()
    limit = f"the limit max_bytes={max_bytes} ({max_bytes / 2**30:.3g} GiB)"
    remedy = (
        f"or raise max_bytes (None: no limit, not even that of the {free / 2**30:.3g} GiB free)"
    )
    if total <= max_bytes:
        if total <= free:
            return
        limit = f"the {free / 2**30:.3g} GiB of memory that the machine has free"
        remedy = "or write max_bytes=None to try all the same"
    parts = ", ".join(f"{g} {s / 2**30:.3g}" for g, s in sorted(sizes.items(), key=lambda i: -i[1]))
    raise ArgumentError(
        f"the result would need {total / 2**30:.3g} GiB (in GiB: {parts}), more than {limit}; use "
        f"a smaller num_samples (now {num_samples}), choose groups=(...) without the large ones, "
        f"{remedy}"
    )


def _empty_groups(program: Program, has_constants: bool) -> dict[str, str]:
    """Groups with nothing in them, and the reason."""
    empty = {}
    if not program.of_kind("observed"):
        reason = "the model observes nothing with these arguments; pass the observations"
        empty["log_likelihood"] = empty["observed_data"] = reason
    if not program.of_kind("observed", "free"):
        reason = "the model has no site that is observed or outside of the guide"
        empty["posterior_predictive"] = empty["prior_predictive"] = reason
    if not has_constants:
        empty["constant_data"] = "no argument is a tensor that is not observed"
    return empty


def _checked_names(groups: Sequence[str]) -> list[str]:
    """The names asked for, in our order."""
    if isinstance(groups, str):
        raise ArgumentError(f"groups is the string {groups!r}; expected a sequence: ({groups!r},)")
    groups = check_names("groups", groups)
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        raise ArgumentError(f"groups is {list(groups)}; expected one or more of {GROUPS}")
    return [group for group in GROUPS if group in groups]


def _check_likelihood(program: Program, chosen: Sequence[str]) -> None:
    """An observed site may not depend on a site that no draw of the guide fixes, nor a sum."""
    free: list[str] = []
    for name, site in program.sites.items():
        if site.kind == "free" and not site.is_listed:
            free.append(name)
        elif site.kind == "observed" and free:
            others = tuple(group for group in chosen if group != "log_likelihood")
            raise SiteError(
                f"the log-likelihood of {name!r} may depend on {free}, which the model samples "
                "before it and the guide does not; sum these sites out of the model (discrete ones "
                "by pyro.infer.config_enumerate), add them to the guide, or leave the "
                f"log-likelihood out: groups={others}"
            )
