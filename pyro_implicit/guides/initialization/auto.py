r"""
The start that a guide has unless another is asked for: candidates judged by the objective.

The gradients of the model that it takes, of one draw each, are bounded by the number ``m`` of
latents:

=================  =======================================  ====================================
latents            locations                                Gaussians
=================  =======================================  ====================================
up to 1000         at most 5, 30 gradients each             mode (about 100) and Hessian there;
                                                            mean field (at most 1000, above 256
                                                            latents 500, and 500 from afar);
                                                            full rank from the best of these (at
                                                            most 120 Hessians, and 30 000
                                                            products with them)
up to 20 000       at most 5, 30 gradients each             mean field (at most 500, and 500
                                                            from afar)
more, or where     at most 5, 30 gradients each (above      none: one of 4 deviations, by 4
only some rows     20 000 latents 5)                        draws each
are shown
=================  =======================================  ====================================

Where the location is given it alone is tried: the Gaussian is that uphill from there, moved back to
it. (Deviations of a tenth in its place, as Pyro's guides have them, have to grow by a factor of ten
and more, and the first steps at the usual rates of Pyro's examples then overshot.) For a network it
is one of the 4 deviations.

A thousand of these gradients cost about as much as 125 to 500 steps of training.

A network of up to 256 latents whose hidden units can be exchanged has 5 mean-field fits more, from
draws of its prior, 1000 steps of 16 draws at once each, and another full-rank fit from the best of
these. With two hidden layers and more its Gaussians are compared with all their copies
(:class:`~pyro_implicit.guides.initialization.copies.Copies`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._progress import progress_bar, progress_is_hidden
from pyro_implicit._random import RandomStream
from pyro_implicit.guides.initialization.copies import find_copies
from pyro_implicit.guides.initialization.curvature import find_mode, inverse_root
from pyro_implicit.guides.initialization.fits_from_prior import NUM_PRIOR_DRAWS, fit_from_prior
from pyro_implicit.guides.initialization.full_rank import fit_full_rank
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart
from pyro_implicit.guides.initialization.initial import fan_in_scale
from pyro_implicit.guides.initialization.locations import locations, prior_draws
from pyro_implicit.guides.initialization.mean_field import fit_mean_field
from pyro_implicit.guides.initialization.network import MAX_SMALL_NETWORK_LATENTS, has_layers
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.guides.initialization.start_report import StartReport
from pyro_implicit.guides.initialization.trials import FAILURES, Trials
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.rows.row_slices import is_cut

__all__ = ["MAX_LATENTS_FOR_HESSIAN", "auto_start"]

#: latents up to which full matrices are tried (the mode with its Hessian, full rank), unless they
#: are a network
MAX_LATENTS_FOR_HESSIAN = 1000
_MAX_MEAN_FIELD_LATENTS = 20_000
#: from each location; the latter above _MAX_MEAN_FIELD_LATENTS
_UPHILL_STEPS, _UPHILL_STEPS_LARGE = 30, 5
#: at most; the latter above MAX_SMALL_NETWORK_LATENTS, and for the fit from the location itself
_MEAN_FIELD_STEPS, _MEAN_FIELD_STEPS_LARGE = 1000, 500
_MODE_STEPS, _NEWTON_STEPS = 100, 3
#: unit of the steps of a mean-field fit's location, at most 1: for weights with a fan-in above 10
#: they are shorter
_STEP_UNIT_IN_FAN_IN_SCALES = 3.2
_CANDIDATE_RELATIVE_SDS = (0.1, 0.03, 0.01, 0.003)  # in units of each latent's scale
_DEFAULT_RELATIVE_SD = 0.1  # in the same units, as Pyro's guides begin
_INITIAL_SD_OF_NETWORKS = 0.01
_MODULE_LOCATION = "the module's values"
_OF_PRIOR = "mean field, fitted from draws of the prior"
_REASON_OF_PARTIAL_ROWS = "only some rows are shown, or a likelihood is weighted as if that were so"
#: that Gaussians are compared on; the latter for rough choices, and where not all rows are shown
_NUM_BOUND_DRAWS, _NUM_ROUGH_DRAWS = 64, 4
_BAR_DELAY_SECONDS = 5.0


@dataclass(frozen=True)
class _Task:
    """What is looked for, and what is known of the density."""

    unit: Tensor  # the scale of each latent
    fixed: bool  # whether the location is given
    location_only: bool
    is_whole: bool  # whether all rows are seen
    is_settled: bool  # and nothing else is trained, so that a location found is final
    has_layers: bool  # at least half of the latents are weights, of several layers
    prior_draws: Sequence[Tensor] = ()  # of a small network

    @property
    def is_network(self) -> bool:
        """Whether it has so many weights that no full matrix is looked for."""
        return self.has_layers and self.unit.numel() > MAX_SMALL_NETWORK_LATENTS


def auto_start(
    log_joint: LogJoint,
    located: Callable[..., Any],
    loc: Tensor,
    *,
    sizes: Sequence[int] = (),
    fixed: bool = False,
    location_only: bool = False,
) -> tuple[GaussianStart, StartReport]:
    """
    Finds a start for a guide, by trying several.

    Locations are judged by the log-joint density after a few steps uphill, Gaussians by their
    evidence lower bound on draws that all share. Nothing that is seen from outside changes: random
    numbers are those of a stream of its own (which one draw of torch seeds), networks are in
    evaluation mode, and only the latents are moved.

    Where the density is random at given latents (some are hidden from the guide, or a layer draws
    noise) or a site shows some of its rows only, nothing can be judged: ``loc`` is taken.

    :param LogJoint log_joint: the model's density.
    :param located: the model with its latents at ``loc``.
    :param torch.Tensor loc: the location without a search, shape ``(m,)``.
    :param sizes: of the parts of the latents that the guide makes independently; one by default.
    :param bool fixed: whether that location is to stay.
    :param bool location_only: whether no Gaussian is sought.
    :returns: the start and what was tried.
    """
    begin, sites = time.perf_counter(), log_joint.sites
    cut = next((s.name for s in sites for f in s.frames if f.size != f.full_size), None)
    unit = torch.cat([loc.new_full((site.numel,), fan_in_scale(site)) for site in sites])
    with RandomStream(int(torch.randint(2**31, ()))), warnings.catch_warnings(), evaluation_mode():
        warnings.simplefilter("ignore")
        trace = poutine.block(poutine.trace(located).get_trace)(*log_joint.args, **log_joint.kwargs)
        known = _is_whole(trace), _is_settled(trace), has_layers(sites, trace)
        task = _Task(unit, fixed, location_only, *known)
        if cut is not None:
            return _bare(loc, task), _untried(f"site {cut!r} shows some of its rows only")
        found, pairs = {"the location given": loc}, []
        if not fixed:
            pairs = [(site, trace.nodes[site.name]) for site in sites]
            found = locations(pairs, loc)
        shown = not progress_is_hidden()
        with progress_bar(
            desc="start of the guide", delay=_BAR_DELAY_SECONDS, leave=False, shown=shown
        ) as bar:
            num_samples = _NUM_BOUND_DRAWS if task.is_whole else _NUM_ROUGH_DRAWS
            density = SearchDensity(_on_these_rows(log_joint, trace), bar)
            trials = Trials(density, num_samples, sizes or (loc.numel(),))
            if pairs and task.has_layers and not task.is_network:
                task = _with_copies(trials, pairs, loc, task)
            start, notes = _search(trials, found, task)
    return start, StartReport(
        *notes,
        tuple(trials.locations),
        tuple(trials.gaussians),
        density.num_gradients,
        time.perf_counter() - begin,
    )


def _with_copies(
    trials: Trials, pairs: Sequence[tuple[LatentSite, Any]], loc: Tensor, task: _Task
) -> _Task:
    """The task of a small network, with draws of its prior if its units can be exchanged."""
    draws = prior_draws(pairs, loc, NUM_PRIOR_DRAWS)
    copies = find_copies(trials.density.log_joint, [site for site, _ in pairs], draws, loc)
    if not copies.groups:
        return task
    trials.copies = copies if copies.is_deep else None
    return replace(task, prior_draws=draws)


def _search(
    trials: Trials, found: dict[str, Tensor], task: _Task
) -> tuple[GaussianStart, tuple[str, str, str]]:
    """The start; the name of its location, its own name, and why it was taken."""
    default, loc = next(iter(found.items()))
    is_certain, is_narrow = _is_certain(trials, found), task.is_network and not task.location_only
    if not is_certain:
        why = (
            "the model is random at given latents, or has no finite density where it was tried "
            "(hide no latent that is marked for enumeration: guides leave it to the model)"
        )
        if is_narrow and _MODULE_LOCATION in found:
            return _narrow(found[_MODULE_LOCATION]), (_MODULE_LOCATION, "narrow", why)
        return _bare(loc, task), (default, "usual deviations", why)
    if is_narrow:
        name, loc, _ = _best_location(trials, _as_wrapped(trials, found))
        why = f"a network of {loc.numel()} latents, where a quick fit gives up what it needs"
        return _narrow(loc), (name, "narrow", why)
    name, loc, point = _best_location(trials, found)
    if task.location_only:
        why = "units of its own (init_scale, scale or generator) leave only that to choose"
        return GaussianStart(loc), (name, "the location alone", why)
    is_given_network = task.fixed and task.has_layers
    if not task.is_whole or loc.numel() > _MAX_MEAN_FIELD_LATENTS or is_given_network:
        why = "too many latents for a fit" if task.is_whole else _REASON_OF_PARTIAL_ROWS
        if is_given_network:  # the widths of another fit are not those of a network
            why = "the location of a network is given"
        trials.judge("deviations", lambda: _deviations(trials, point, task, loc))
    else:
        why = "its evidence bound is the highest"
        if trials.copies is not None:
            why = (
                "its evidence bound with that of its copies (orders of hidden units) is the highest"
            )
        if task.fixed:
            why += "; found uphill from the location given, and moved there"
        _try_gaussians(trials, point, loc, task)
    best = trials.best()
    if best is None:
        return _bare(loc, task), (name, "usual deviations", "no Gaussian has a finite bound")
    start = trials.starts[best]
    if task.fixed:
        start = replace(start, loc=loc, is_settled=False)
    return start, (name, best, why)


def _as_wrapped(trials: Trials, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The values of the wrapped module alone, where they are known and of some use."""
    with torch.no_grad():
        loc = found.get(_MODULE_LOCATION)
        known = loc is not None and bool(trials.density(loc).isfinite())
    return {_MODULE_LOCATION: found[_MODULE_LOCATION]} if known else found


def _best_location(trials: Trials, found: dict[str, Tensor]) -> tuple[str, Tensor, Tensor]:
    """Name of the best location, the location, and the best point uphill from it."""
    scores = {}
    for name, loc in found.items():
        num_steps = _UPHILL_STEPS if loc.numel() <= _MAX_MEAN_FIELD_LATENTS else _UPHILL_STEPS_LARGE
        scores[name] = trials.climb(name, loc, num_steps)
    best = max(scores, key=lambda name: scores[name][0])
    return best, found[best], scores[best][1]


def _try_gaussians(trials: Trials, point: Tensor, loc: Tensor, task: _Task) -> None:
    """
    All Gaussians that the number of latents allows.

    Uphill of a location there may be a peak that has no mass, as where the scale of a hierarchical
    model goes to zero. A second mean-field fit therefore begins at the location itself.
    """
    trials.judge("deviations", lambda: _deviations(trials, point, task, point))
    if point.numel() <= MAX_LATENTS_FOR_HESSIAN:
        trials.judge("mode", lambda: _mode(trials, point, task))
    trials.judge("mean field", lambda: _mean_field(trials, point, task))
    trials.judge(
        "mean field, fitted from the location itself", lambda: _mean_field_from(trials, loc, task)
    )
    if task.prior_draws:
        trials.judge(_OF_PRIOR, lambda: _mean_field_of_prior(trials, task))
    if point.numel() <= MAX_LATENTS_FOR_HESSIAN:
        _try_full_rank(trials, task)


def _try_full_rank(trials: Trials, task: _Task) -> None:
    """
    From the best of all others, and of a small network from the fit from draws of its prior.

    What one of the two has learned may show in correlations alone: it gained 20 nats by them where
    the other, which had learned nothing, gained none.
    """
    begins = {"full rank": trials.best(but=_OF_PRIOR)}
    if _OF_PRIOR in trials.starts:
        begins["full rank, fitted from draws of the prior"] = _OF_PRIOR
    for name, begin in begins.items():
        if begin is not None:
            trials.judge(name, partial(_full_rank, trials, trials.starts[begin], task))


def _deviations(
    trials: Trials, point: Tensor, task: _Task, loc: Tensor
) -> tuple[GaussianStart, str]:
    """
    The best of a few common deviations around ``loc``, relative to the scale of each latent.

    They are compared at a point uphill: where nothing is learned yet the widest is no worse, and
    hides what there is to learn.
    """

    def bound(part: float) -> float:
        return objective(trials.density, point, part * task.unit, _NUM_ROUGH_DRAWS)

    best = max(_CANDIDATE_RELATIVE_SDS, key=bound)
    start = GaussianStart(loc, best * task.unit, guess=best, is_settled=False)
    return start, f"{best} of their scales"


def _narrow(loc: Tensor) -> GaussianStart:
    """
    Small deviations, the same for all latents.

    Steps are as long for all of them too, as those of a mean-field guide: in units of the fan-in
    large layers lag behind, and a network gives up units that it would need.
    """
    return GaussianStart(loc, guess=_INITIAL_SD_OF_NETWORKS, is_settled=False)


def _mode(trials: Trials, point: Tensor, task: _Task) -> tuple[GaussianStart, str]:
    mode, curvature = find_mode(
        trials.density,
        point,
        climb=trials.density.maximise,
        num_rounds=1,
        num_steps=_MODE_STEPS,
        num_newton=_NEWTON_STEPS,
    )
    return GaussianStart(mode, inverse_root(curvature), is_settled=task.is_settled), ""


def _mean_field(trials: Trials, point: Tensor, task: _Task) -> tuple[GaussianStart, str]:
    """A mean-field fit from the better of the location and the mode."""
    begins = [(point, part * task.unit) for part in (*_CANDIDATE_RELATIVE_SDS[:1], 0.01)]
    if "mode" in trials.starts:
        mode = trials.starts["mode"]
        assert mode.factor is not None
        begins += [(mode.loc, 0.01 * task.unit), (mode.loc, 1 / _precision(mode.factor))]
    loc, scale = max(begins, key=lambda b: objective(trials.density, b[0], b[1], _NUM_ROUGH_DRAWS))
    is_small = point.numel() <= MAX_SMALL_NETWORK_LATENTS
    num_steps = _MEAN_FIELD_STEPS if is_small else _MEAN_FIELD_STEPS_LARGE
    return _fitted(trials, (loc, scale), num_steps, task)


def _mean_field_from(trials: Trials, loc: Tensor, task: _Task) -> tuple[GaussianStart, str]:
    """A mean-field fit from a location with usual deviations, as Pyro's guides begin."""
    return _fitted(trials, (loc, _DEFAULT_RELATIVE_SD * task.unit), _MEAN_FIELD_STEPS_LARGE, task)


def _fitted(
    trials: Trials, begin: tuple[Tensor, Tensor], num_steps: int, task: _Task
) -> tuple[GaussianStart, str]:
    unit = (_STEP_UNIT_IN_FAN_IN_SCALES * task.unit).clamp(max=1.0)
    fit = trials.density.mean_field(
        begin[0], lambda density: fit_mean_field(density, *begin, num_steps, unit), _NUM_ROUGH_DRAWS
    )
    settled = task.is_settled and fit.is_level
    note = "" if fit.is_level else f"not level after {num_steps} steps"
    return GaussianStart(fit.loc, fit.scale, is_settled=settled), note


def _mean_field_of_prior(trials: Trials, task: _Task) -> tuple[GaussianStart, str]:
    fit, note = fit_from_prior(trials, task.prior_draws)
    return GaussianStart(fit.loc, fit.scale, is_settled=task.is_settled and fit.is_level), note


def _precision(factor: Tensor) -> Tensor:
    """The conditional deviations' inverses of the Gaussian with a root of its covariance."""
    deviations: Tensor = torch.linalg.inv(factor).square().sum(0).sqrt()
    return deviations


def _full_rank(trials: Trials, begin: GaussianStart, task: _Task) -> tuple[GaussianStart, str]:
    """What the best of all others becomes by steps uphill of its own bound."""
    assert begin.factor is not None
    loc, factor = fit_full_rank(trials.density, begin.loc, begin.factor)
    return GaussianStart(loc, factor, is_settled=task.is_settled), ""


# ---- what is known of the density


def _is_certain(trials: Trials, found: dict[str, Tensor]) -> bool:
    """Whether the density is the same twice, at a candidate where it is finite."""
    with torch.no_grad():
        for loc in found.values():
            try:
                first = trials.density(loc)
                if bool(first.isfinite()):
                    return torch.allclose(first, trials.density(loc))
            except FAILURES:
                continue
    return False


def _on_these_rows(log_joint: LogJoint, trace: Any) -> LogJoint:
    """The density on the rows of a trace, where the model chooses some by itself."""
    rows = {name: node["value"] for name, node in trace.nodes.items() if site_is_subsample(node)}
    if not rows:
        return log_joint
    model: Callable[..., Any] = poutine.condition(log_joint.model, data=rows)
    return LogJoint(model, log_joint.sites, log_joint.args, log_joint.kwargs)


def _is_whole(trace: Any) -> bool:
    """Whether the trace shows all rows: no plate is cut, and no likelihood weighted up."""
    for node in trace.nodes.values():
        if node["type"] != "sample":
            continue
        if is_cut(node) or (node["is_observed"] and _stands_for_more(node)):
            return False
    return True


def _stands_for_more(node: Any) -> bool:
    """
    Whether the weight of a likelihood is that of all rows over those shown.

    Weights that differ from row to row are a survey's, say, and so is one that makes no whole
    number of any plate's rows.
    """
    scale = torch.as_tensor(node["scale"]).detach().double()
    weight = float(scale.max())
    if weight <= 1 or float(scale.min()) != weight:
        return False
    sizes = [frame.size for frame in node["cond_indep_stack"] if frame.size and frame.size > 0]
    return not sizes or any(abs(weight * n - round(weight * n)) < 1e-3 for n in sizes)


def _is_settled(trace: Any) -> bool:
    """Whether nothing is trained beside the latents."""
    return all(node["type"] != "param" for node in trace.nodes.values())


def _bare(loc: Tensor, task: _Task) -> GaussianStart:
    if task.location_only:
        return GaussianStart(loc)
    scale = _DEFAULT_RELATIVE_SD * task.unit
    return GaussianStart(loc, scale, guess=_DEFAULT_RELATIVE_SD, is_settled=False)


def _untried(why: str) -> StartReport:
    return StartReport("the default", "usual deviations", why)
