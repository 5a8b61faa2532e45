"""A fitted guide and its model as what ArviZ works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro.infer import ELBO
from torch import nn

from pyro_implicit._checks import check_count, check_instance
from pyro_implicit._seeded import seeded
from pyro_implicit._signature import in_order
from pyro_implicit._warn import warn
from pyro_implicit.arviz.attrs import run_attrs
from pyro_implicit.arviz.chain_draws import chain_draws
from pyro_implicit.arviz.collect import PRIOR_GROUPS, collect
from pyro_implicit.arviz.export import Export
from pyro_implicit.arviz.groups import NOTE_OF_PREDICTIVE
from pyro_implicit.arviz.program import Program
from pyro_implicit.arviz.rows import RowBatches
from pyro_implicit.arviz.sample_stats import sample_stats
from pyro_implicit.arviz.site import Site
from pyro_implicit.arviz.summed_likelihood import uncounted_factors
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.handlers.enumeration.choice_for_all import choices_of_groups
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.held.held_warnings import warning_of_unheard
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.pointwise import warning_of_factors, warning_of_factors_alone
from pyro_implicit.handlers.supports.own_support import own_support
from pyro_implicit.inference.fitted_call import FittedCall
from pyro_implicit.inference.from_prior import of_another_model
from pyro_implicit.inference.outside_support import drawn_outside, is_outside

__all__ = ["to_arviz"]


@evaluation_mode()
def to_arviz(
    model: Callable[..., Any],
    guide: Callable[..., Any] | Sequence[Callable[..., Any]],
    *args: Any,
    num_samples: int = 1000,
    groups: Sequence[str] | None = None,
    batch_size: int | None = None,
    objective: ELBO | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    max_bytes: float | None = 4 * 2**30,
    seed: int | None = None,
    **kwargs: Any,
) -> Any:
    r"""
    Draws from a fitted guide, and all that follows from them, for ArviZ.

    Groups: ``posterior``, ``log_likelihood``, ``posterior_predictive``, ``prior``,
    ``prior_predictive``, ``observed_data``, ``constant_data``, and ``sample_stats`` of chains, or
    of guides with a density if it is asked for by name. The log-likelihood is
    :math:`\log p(y_n \mid \theta_s)` for each observed site and each datum of its plates, in
    float64, without a minibatch's scale; masked data have 0, and discrete latents that are marked
    for enumeration are summed out. Terms of ``pyro.factor`` are in no group.

    Draws of a guide are independent and stored as one chain, ``(1, num_samples)``: R-hat and
    effective sample sizes mean nothing for them. Chains of :func:`~pyro_implicit.refine` are
    stored as chains. Several guides become a dimension ``restart`` after ``draw``; they are not
    chains of one sampler, and ``az.loo`` takes one of them: ``data.sel(restart=0)``.

    Dimensions of plates have the plate's name; others are ``{site}_dim_{i}``, and a slash in a name
    becomes a dot. Attributes hold versions, guide, objective and seed. The model is run once per
    draw for each kind of run, and need not vectorise. :doc:`Hand a fit to ArviZ </howto/arviz>`
    tells of each group.

    Example::

        data = to_arviz(model, guide, x, y, objective=LinearisedELBO(num_particles=8))
        az.loo(data)
        data.to_netcdf("posterior.nc")
        both = to_arviz(model, [guide, other_guide], x, y)
        both["posterior"]["sigma"].mean("draw")  # one number per restart

    :param callable model: a Pyro model.
    :param guide: a guide for it: one of this package, any autoguide, or a function; or a list or
        tuple of guides that draw the same sites, see above.
    :param args: arguments of the model and guide, observations included. For arguments whose names
        are taken below, use ``functools.partial(model, ...)``.
    :param int num_samples: draws of the guide, and of the prior; of chains at most so many.
    :param groups: names of the groups to make; by default all that can be made.
    :param int batch_size: run the model on so many rows at a time, of every tensor argument whose
        first size is that of the first tensor argument; memory for a run is then bounded (but for
        one look at all rows, where data have at most four million numbers). No number changes but
        the random ones of the prior and predictive groups; rows that belong together are refused,
        as far as they are seen (see :func:`~pyro_implicit.predict`), and so are models that take
        all rows alone.
    :param ELBO objective: the objective that the guide was fitted with, recorded in the attributes.
    :param dict coords: labels by name of dimension.
    :param dict dims: names of dimensions by variable: of all, or of those without a plate.
    :param float max_bytes: refuse to make more than this, 4 GiB by default, or more than is free;
        ``None``: no limit.
    :param int seed: of all draws; None: the global random numbers are drawn from.
    :param kwargs: keyword arguments of the model and guide.
    :returns: ``arviz.InferenceData`` with ArviZ 0.x, ``xarray.DataTree`` with ArviZ >= 1; variables
        have shape ``(1, num_samples, *shape)``, or ``(1, num_samples, num_guides, *shape)``; those
        of the data groups have no sample dimensions.
    :raises ArgumentError: for bad values, groups that cannot be made, or too large ones (for
        ``sample_stats``, a guide without a density); for guides in a list that draw different
        sites.
    :raises StateError: for a guide that is not built yet.
    :raises SiteError: within ``with poutine.condition(...):``, which would hold the guide's draws
        too; for a log-likelihood that depends on a site outside of the guide, or a prior that was
        asked for and cannot be drawn (or has a draw that the model refuses); if a plate draws some
        of its rows at random.
    :raises ShapeError: if a latent has a value for each row, or is held at one, and nobody has
        said which of them these are; if there are no rows.
    :warns UserWarning: where groups may not be what was meant: a draw of the prior that the
        model refuses, so that its groups are left out; a discrete latent that all data share,
        so that there are no predictions; one of groups that is drawn from its prior; data in
        ``pyro.factor`` alone; rows or inputs other than those that the guide was built with;
        sites held by ``poutine.condition`` that the guide draws too, that are not clearly data,
        or that depend on sites before them; latents outside of their prior's support, and
        observations that are made of latents.
    """
    num_samples = check_count("num_samples", num_samples)
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    check_instance("objective", objective, (ELBO, type(None)), "the objective, or None")
    for name, given in (("coords", coords), ("dims", dims)):
        check_instance(name, given, (Mapping, type(None)), "a dictionary by name, or None")
    guides, kwargs = _listed(guide), in_order(model, kwargs)
    calls = [FittedCall(to_arviz, model, one, args, kwargs) for one in guides]
    _check_built(guides)
    for call in calls:
        call.warn(call.warning_of_arguments(is_scored=True))
    num_restarts = len(guides) if isinstance(guide, (list, tuple)) else None
    with seeded(seed):
        programs = _programs(model, guides, RowBatches(args, kwargs, batch_size))
        chains = None if num_restarts else chain_draws(guides[0], num_samples)
        export = Export(programs[0], groups, chains, num_samples, num_restarts)
        stats = sample_stats(
            export.chosen, chains, guides, bool(num_restarts), (model, args, kwargs)
        )
        export.lay_out(stats, max_bytes, dims, coords)
        with explained_errors(args, kwargs, guides[0]):
            arrays, refused = collect(
                programs, guides, export.plan, export.num_samples, bool(num_restarts), export.draws
            )
    if refused:
        _warn_of_the_prior(refused, groups)
    notes = _warning_of(programs, arrays, chosen=groups is not None)
    if why := export.notes.get(NOTE_OF_PREDICTIVE):
        notes.append(f"the group posterior_predictive is left out: {why}")
    calls[0].warn([*notes, *(text for one in calls for text in one.watched.warnings())])
    if stats is not None:
        arrays["sample_stats"] = stats.arrays(arrays["posterior"])
    return export.made(arrays, run_attrs(guides[0], objective, export.notes, seed))


def _programs(
    model: Callable[..., Any], guides: list[Callable[..., Any]], rows: RowBatches
) -> list[Program]:
    """What a run of the model with each guide is like."""
    with explained_errors(rows.args, rows.kwargs, guides[0]):
        programs = [Program(model, one, rows) for one in guides]
    drawn = programs[0].draw.keys() - programs[0].subsamples.keys()
    if drawn and not programs[0].of_kind("latent"):
        raise of_another_model(drawn)
    _check_same_sites(programs)
    return programs


def _warning_of(programs: list[Program], arrays: Mapping[str, Any], chosen: bool) -> list[str]:
    """What looks wrong in the groups that were made, in words."""
    first = programs[0]
    factors = uncounted_factors(first) if "log_likelihood" in arrays else set()
    notes = [warning_of_factors(factors)] if factors else []
    if first.factors and not (chosen or first.of_kind("observed")):
        notes.append(warning_of_factors_alone(first.factors))
    if "posterior_predictive" in arrays:
        notes.append(warning_of_unheard(first.unheard))
        notes.append(choices_of_groups(first.choices, first.predicted, first.row_plates))
    if first.moving_data:
        notes.append(
            f"{sorted(first.moving_data)} observes what follows latents (residuals, say): "
            "observed_data has its values at one draw. Let the model observe the data themselves, "
            "and put what follows latents into the distribution."
        )
    notes.append(_warning_of_supports(first, arrays.get("posterior", {})))
    return notes + [text for one in programs for text in one.warning_of_held]


def _warning_of_supports(program: Program, posterior: Mapping[str, Any]) -> str:
    """Latents whose draws the model's prior would never make."""
    return drawn_outside(
        {
            name: own_support(fn)
            for name, fn in program.priors.items()
            if name in posterior and is_outside(fn, torch.as_tensor(posterior[name]))
        }
    )


def _warn_of_the_prior(refused: str, groups: Sequence[str] | None) -> None:
    """
    Says why there are no draws of the prior.

    :raises SiteError: if they were asked for.
    """
    if groups is not None and PRIOR_GROUPS.intersection(groups):
        asked = " and ".join(sorted(PRIOR_GROUPS.intersection(groups)))
        raise SiteError(
            f"{asked} asked for, and {refused}. Leave it out of groups, or give the prior a "
            "lighter tail."
        )
    warn(
        f"the groups prior and prior_predictive are left out: {refused}. The other groups do not "
        "need them; groups=(...) without them says that they are not wanted."
    )


def _listed(guide: Any) -> list[Callable[..., Any]]:
    """The guides, in a list of their own."""
    guides = list(guide) if isinstance(guide, (list, tuple)) else [guide]
    if not guides:
        raise ArgumentError(
            "guide is an empty list; expected a guide, or a list of guides that were trained "
            "independently"
        )
    return guides


def _check_built(guides: list[Callable[..., Any]]) -> None:
    """Refuses a guide that was never built, as predict does."""
    for one in guides:
        parts = one.modules() if isinstance(one, nn.Module) else ()
        for part in parts:
            if isinstance(part, ImplicitGuide):
                part.samplers  # noqa: B018 (raises for one that was never built)


def _check_same_sites(programs: Sequence[Program]) -> None:
    """Restarts are stacked: they must have the same sites, of the same shapes."""
    first = programs[0].sites
    for number, program in enumerate(programs[1:], 1):
        found = program.sites
        differing = sorted(
            name
            for name in first.keys() | found.keys()
            if name not in first or name not in found or not _alike(first[name], found[name])
        )
        if differing:
            raise ArgumentError(
                f"guide {number} differs from guide 0 in sites {differing}; expected restarts of "
                "one guide: the same sites with the same shapes. Export them one by one"
            )


def _alike(site: Site, other: Site) -> bool:
    same_value = (site.value.shape, site.value.dtype) == (other.value.shape, other.value.dtype)
    return site.kind == other.kind and same_value
