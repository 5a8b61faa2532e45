"""How good a fit's predictions of data are: every score that their likelihood allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_seed
from pyro_implicit._few import few_of
from pyro_implicit._random import RandomStream
from pyro_implicit._signature import in_order
from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.held_data import observed_when_built
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.errors.value_errors import entries_not_finite
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.rows.own_subsample import sizes_of_arguments
from pyro_implicit.handlers.rows.row_slices import NotSliceable, number_of_rows
from pyro_implicit.inference.evaluation.draw_chunks import DrawChunks
from pyro_implicit.inference.evaluation.evaluation_job import EvaluationJob, SiteData
from pyro_implicit.inference.evaluation.report import EvaluationReport, Score, SiteEvaluation
from pyro_implicit.inference.evaluation.summed_out import with_exact_densities
from pyro_implicit.inference.fitted_call import FittedCall
from pyro_implicit.inference.from_prior import forgotten_of
from pyro_implicit.inference.row_numbers import numbered_if_drawn
from pyro_implicit.inference.run_plan import NOTE_OF_UNUSED_BATCH_SIZE, ROWS_PER_SEED, RunPlan
from pyro_implicit.ops.scoring import mean_and_error

__all__ = ["evaluate"]

_PREFIXES_OF_NO_SCORES = ("row", "mean", "lower_", "upper_")
_NUM_ECE_BINS = 15


@torch.no_grad()
@evaluation_mode()
def evaluate(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int = 200,
    batch_size: int | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> EvaluationReport:
    r"""
    Scores a fit on data, best on some that it has not seen.

    Every observed site gets what its distribution allows; the predictive distribution is the mean
    of the likelihoods at the draws of the guide.

    =============  ==================================================================
    numbers        ``log_density``, ``rmse`` (of the mean), ``mae`` (of the median),
                   ``crps``, ``coverage_50``, ``coverage_90``, ``coverage_95`` of
                   central intervals, and their ``width_50`` and so on
    counts         the same; intervals end at counts, and so cover a bit more
    classes        ``log_density``, ``accuracy``, ``nll``, ``brier`` (with two classes
                   the square of one probability's error), ``ece`` (of the class
                   predicted, 15 bins; needs torchmetrics)
    angles         ``log_density``
    =============  ==================================================================

    The log predictive density is :math:`\log \tfrac1S \sum_s p(y_i \mid \theta_s)` for each datum,
    the mean of what :func:`~pyro_implicit.log_predictive_density` would give with the same draws,
    where rows are in a plate (others are one datum there). Discrete latents marked for enumeration
    are summed out of it, and what they join is one datum; other scores are of draws of them.
    CRPS, medians and intervals come from a thousand draws of observations or more (``num_samples``
    if that is more). Entries of one observation are scored by themselves and averaged. No minibatch
    scale is applied, and masked data are left out. What ``poutine.condition`` holds is no datum
    where the model observes others (see :func:`~pyro_implicit.predict`).

    Rows are what is counted in standard errors: data of the same row are not independent. They do
    not tell how much luck there was in the draws, nor in the fit.

    :param model: a Pyro model whose arguments include the observations.
    :param guide: any guide of it. Latents that it does not draw come from their prior.
    :param args: the model's arguments, such as ``x_test, y_test``.
    :param int num_samples: draws of the guide; the log density rises a little with their number, so
        compare at the same.
    :param int batch_size: rows at a time, rounded up to a multiple of 32, and to as many as make a
        million numbers on their way through the model; by default as many as fit
        into some hundred megabytes. It changes nothing but memory and time: rows that belong
        together are evaluated at once, as far as they are seen; see
        :func:`~pyro_implicit.predict`.
    :param int seed: of all draws; random numbers outside go on as if nothing had been drawn. None:
        one that torch draws.
    :param kwargs: the model's keyword arguments.
    :returns: the scores; it can be printed.
    :raises ArgumentError: if a number is no positive integer, or model or guide cannot be run; for
        options that neither this function nor the model has.
    :raises MissingExtraError: if classes are observed and torchmetrics is not installed.
    :raises NonFiniteError: if observations are NaN, masked or not, naming the site: a mask hides
        numbers, so fill masked ones with any.
    :raises ShapeError: if a latent has a value for each row, or is held at one, and nobody has
        said which of them these are; if observations do not fit their distribution.
    :raises SiteError: within ``with poutine.condition(...):``, which would hold the guide's draws
        too; if nothing is observed, or only by ``pyro.factor``, or all is masked; if a distribution
        does not tell its support; if the guide draws none of the model's latents; if a plate draws
        some of its rows at random.
    :warns UserWarning: if the first argument has lost a dimension since the guide was built;
        if the guide has a latent of each row, and these are other rows; if the model holds
        its observations itself and is given other inputs; if the guide makes its latents
        from what is observed; if it does not draw all of the model's latents, or draws one
        outside its prior's support; if a site is that of
        an :class:`~pyro_implicit.ImplicitProcess`, whose draws know nothing of the data; if a site
        is one datum of all rows, as that of a Gaussian process, and these are others; if the
        guide draws what ``poutine.condition`` holds, or if all that the model observes is held so
        and not clearly data; if ``batch_size`` is given and no argument is a tensor, or the model
        does not run on some of its rows.

    Example::

        print(evaluate(model, guide, x_test, y_test))
    """
    call = FittedCall(evaluate, model, guide, args, kwargs)
    call.warn(call.warning_of_arguments(is_scored=True))
    num_samples = check_count("num_samples", num_samples)
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    seed = int(torch.randint(2**31, ())) if seed is None else check_seed("seed", seed)
    kwargs = in_order(model, kwargs)
    rows = number_of_rows(args, kwargs)
    by_row = guide if isinstance(guide, ConditionalGuide) else None
    with RandomStream(seed), explained_errors(args, kwargs, guide):
        chunks = None if by_row else DrawChunks(guide, args, kwargs, num_samples, seed)
        plan = RunPlan({} if chunks is None else chunks.first, rows, seed, None)
        plan.sizes = sizes_of_arguments(args, kwargs)
        plan.order = numbered_if_drawn(guide)
        job = EvaluationJob(model, by_row, args, kwargs, plan, num_samples)
        job.prepare(chunks)
        job.find_layout(batch_size)
        try:
            job.evaluate(batch_size)
        except NotSliceable:  # noise that cannot be drawn by row: as many rows as share a state
            job.evaluate(ROWS_PER_SEED, exactly=True)
        job.check_guide_is_for_the_model()
    notes = plan.warnings()
    if batch_size is not None and not rows:
        notes.append(NOTE_OF_UNUSED_BATCH_SIZE)
    job.from_prior = forgotten_of(model, guide, job.from_prior)
    call.warn([*notes, *call.warning_of_runs(plan.joint_rows), job.missing_latents()])
    call.warn(call.warning_of_seen_observations())  # last: a function's draws may end
    return _report(job, guide, seed)


def _report(job: EvaluationJob, guide: Any, seed: int) -> EvaluationReport:
    """All scores of all data."""
    joint = []
    for data in job.joint.values():
        joint.append(data.joined())
        if data.row_dim is None:  # no rows: each datum by itself, and none with those of others
            joint[-1]["row"] = -1 - joint[-1]["row"] - sum(len(one["row"]) for one in joint[:-1])
    if job.summed_out:
        joint = with_exact_densities(job, guide, seed, joint)
    names = ("log_density", "row", "fingerprint")
    whole = {name: torch.cat([data[name] for data in joint]) for name in names}
    if not len(whole["row"]):
        raise SiteError("all observations are masked, so that there is nothing to evaluate.")
    for name, data in job.sites.items():
        if data.num_masked:
            job.notes[f"{data.num_masked} data of {name!r} are masked and left out"] = None
    if any(data.num_masked for data in job.sites.values()):
        job.notes[
            "if values decide what is masked (as in censoring), read the log density alone: the "
            "other scores are of rows that were chosen by their values"
        ] = None
    _note_new_sites(job, guide)
    never = int((whole["log_density"] == -math.inf).sum())
    if never:
        job.notes[f"{never} data have density 0 at every draw"] = None
        if why := entries_not_finite(job.args, job.kwargs):
            job.notes[why] = None
    infinite = int((whole["log_density"] == math.inf).sum())
    if infinite:
        job.notes[
            f"{infinite} data have an infinite density: they are at the edge of a support (zeros "
            "of a Gamma, zeros and ones of a Beta), or a scale is 0, and log densities tell nothing"
        ] = None
    sites = {name: _site(data) for name, data in job.sites.items()}
    for name, site in sites.items():
        _note_missing_means(job, name, site.rows)
    return EvaluationReport(
        log_density=Score(*mean_and_error(whole["log_density"], whole["row"])),
        sites=sites,
        num_samples=job.num_samples,
        rows=whole,
        notes=tuple(job.notes),
    )


def _note_missing_means(job: EvaluationJob, name: str, rows: Mapping[str, Tensor]) -> None:
    means = rows.get("mean")
    if means is None:
        return
    kinds = (
        (
            means.isnan(),
            "no predictive mean (a Cauchy; a Student's t with one degree of freedom or less at "
            "some draw)",
        ),
        (
            means.isinf(),
            "an infinite predictive mean (an InverseGamma of concentration 1 or less, a LogNormal "
            "of huge scale at some draw)",
        ),
    )
    for without, what in kinds:
        if count := int(without.sum()):
            job.notes[
                f"{count} data of {name!r} have {what}, and so no RMSE: read the MAE and the CRPS, "
                "which are of the median and of the whole distribution"
            ] = None


def _note_new_sites(job: EvaluationJob, guide: Any) -> None:
    """Those of a forecast, which are not to be taken for those of the fit."""
    known = observed_when_built(guide)
    new = [name for name in job.sites if name not in known]
    if new and len(new) < len(job.sites):
        listed = few_of(list(map(repr, new)))
        job.notes[
            f"the density of all sites is that of {listed}, which the model did not observe when "
            "the guide was built, and of sites that it did, together; each has scores of its own, "
            f"such as report[{new[0]!r}].log_density"
        ] = None


def _site(data: SiteData) -> SiteEvaluation:
    rows = data.joined()
    scores: dict[str, Score] = {}
    for name, values in rows.items():
        if name.startswith(_PREFIXES_OF_NO_SCORES) or not len(values):
            continue
        mean, error = mean_and_error(values, rows["row"])
        if name == "squared_error":
            name, mean = "rmse", math.sqrt(mean)
            error = error / (2.0 * mean) if mean else math.nan  # by the slope of the square root
        scores["mae" if name == "absolute_error" else name] = Score(mean, error)
    if data.calibration:
        confidence = torch.cat([sure for sure, _ in data.calibration])
        right = torch.cat([true for _, true in data.calibration])
        scores["ece"] = Score(_calibration_error(confidence, right))
    return SiteEvaluation(data.kind, len(rows["row"]), scores, rows)


def _calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The expected calibration error of the predicted class."""
    from torchmetrics.functional.classification import binary_calibration_error

    is_right = right.long()
    return float(binary_calibration_error(confidence, is_right, n_bins=_NUM_ECE_BINS, norm="l1"))
