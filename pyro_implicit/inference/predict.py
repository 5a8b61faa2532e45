"""Predictions of a fitted guide, in bounded memory, with the same draws for every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import (
    check_count,
    check_flag,
    check_names,
    check_num_samples,
)
from pyro_implicit._random import own_numbers
from pyro_implicit._seeded import seeded
from pyro_implicit._signature import in_order
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.unbuilt import refuse_unbuilt
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.errors.value_errors import entries_not_finite
from pyro_implicit.handlers.held.held_warnings import warning_of_unheard
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.pointwise import warning_of_factors_alone
from pyro_implicit.handlers.rows.own_subsample import sizes_of_arguments
from pyro_implicit.handlers.rows.row_slices import NotSliceable, number_of_rows
from pyro_implicit.inference.fitted_call import FittedCall
from pyro_implicit.inference.from_prior import came_from_prior
from pyro_implicit.inference.parallel_errors import blames_parallel
from pyro_implicit.inference.posterior_draws import draws_of
from pyro_implicit.inference.predictive_job import PredictiveJob
from pyro_implicit.inference.row_numbers import numbered_if_drawn
from pyro_implicit.inference.run_plan import NOTE_OF_UNUSED_BATCH_SIZE, ROWS_PER_SEED, RunPlan

__all__ = ["predict"]


@torch.no_grad()
@evaluation_mode()
def predict(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int | None = None,
    batch_size: int | None = None,
    sites: Iterable[str] | None = None,
    parallel: bool = False,
    moments: bool = False,
    seed: int | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    """
    Draws of the observed sites (the posterior predictive) and of any other site asked for.

    The guide is drawn from ``num_samples`` times, once for all rows, so that each draw is one
    coherent function of the inputs. (A conditional guide has draws of its own for each row.) Rows
    are then taken ``batch_size`` at a time; noise of observations is drawn by row, so that the
    result does not depend on ``batch_size``. Rows that belong together, as those of a Gaussian
    process or of a series, are evaluated together. Only the sites asked for are kept, no trace is.

    Data that are passed as ``obs=`` are drawn anew all the same. What ``poutine.condition`` holds
    stays as it is, and is left out unless its name is among ``sites``. Networks are evaluated in
    evaluation mode, and get theirs back: dropout is off, BatchNorm leaves its statistics alone.
    :doc:`Predict new rows </howto/predict>` tells of rows, forecasts and networks at length.

    Example::

        draws = predict(model, guide, x_test, num_samples=1000)["y"]
        draws.mean(0), draws.quantile(torch.tensor([0.05, 0.95]), 0)

    :param model: a Pyro model; arguments for observations are left out, or ignored.
    :param guide: a fitted guide, implicit or not. What it does not draw comes from the model:
        observations, and latents that it leaves out, from their prior.
    :param args: the model's arguments. Every tensor whose first size is that of the first tensor
        is cut into batches of rows.
    :param int num_samples: number of draws, which must be given.
    :param int batch_size: rows at a time, rounded up to a multiple of 32, and to as many as make a
        million numbers in a run of the model; all by default, or where rows belong together.
        Whether they do is looked at, on all rows of data of at most four million numbers; of
        larger data, rows that belong to others far away are not seen: leave it out for these.
    :param sites: names of the sites to keep, ``pyro.deterministic`` ones included; by default every
        site that is not a latent of the guide nor deterministic.
    :param bool parallel: evaluate up to 64 draws in one vectorised pass, as in
        :class:`pyro.infer.Predictive`: faster for many draws of small models, and on a GPU. Every
        batch dimension of the model must then be declared by a plate; that draws keep to
        themselves is looked at first.
    :param bool moments: return mean and variance over draws instead of the draws, in memory that
        does not grow with ``num_samples``.
    :param int seed: of all draws, for the same ``num_samples`` and ``parallel``: fewer draws are
        not the first of more. Random numbers outside go on as if nothing had been drawn. None: one
        that torch draws.
    :param kwargs: the model's keyword arguments.
    :returns: by site, draws of shape ``(num_samples, rows, ...)``; with ``moments`` the mean and
        the variance (unbiased; NaN for one draw), stacked in shape ``(2, rows, ...)``.
    :raises ArgumentError: if ``num_samples`` or ``batch_size`` is below 1, for a bad ``seed``, and
        for options that neither this function nor the model has.
    :raises NonFiniteError: for inputs that are not finite, where predictions are not.
    :raises OutOfMemoryError: if rows that belong together will not fit into memory at once.
    :raises ShapeError: if a latent has a value for each row, or is held at one, and nobody has
        said which of them these are; if there are no rows.
    :raises SiteError: within ``with poutine.condition(...):``, which would hold the guide's draws
        too; if a site asked for is not in the model, or none of the guide's latents is; if a plate
        draws some of its rows at random; with ``parallel``, if the model reads the value of a draw,
        as a branch does, or if what one draw predicts depends on the others.
    :raises StateError: for a guide that is not built, or of Pyro's that was never called.
    :warns UserWarning: where predictions may not be what was meant: other rows or fewer dimensions
        than the guide was built with; parameters that another fit has moved; latents that come
        from their prior, since the guide leaves them out, or that it draws outside of their prior's
        support; processes and Gaussian processes that know nothing of the data; data in
        ``pyro.factor`` alone; sites held by ``poutine.condition`` that are not clearly data, that
        the guide draws too, or that depend on sites before them; ``batch_size`` without a tensor.
    """
    call = FittedCall(predict, model, guide, args, kwargs)
    refuse_unbuilt(guide)
    call.warn(call.warning_of_arguments(is_scored=False))
    num_samples = check_num_samples("predict(model, guide, ...", num_samples)
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    sites = None if sites is None else check_names("sites", sites)
    check_flag("parallel", parallel)
    check_flag("moments", moments)
    kwargs = in_order(model, kwargs)
    by_row = guide if isinstance(guide, ConditionalGuide) else None
    rows, kept = number_of_rows(args, kwargs), None if sites is None else frozenset(sites)
    with seeded(seed):
        draws = {} if by_row else draws_of(guide, num_samples, *args, **kwargs)
        with own_numbers() as numbers, explained_errors(args, kwargs, guide):
            plan = RunPlan(draws, rows, numbers, kept, sizes=sizes_of_arguments(args, kwargs))
            plan.order = numbered_if_drawn(guide)
            job = PredictiveJob(model, by_row, args, kwargs, plan, num_samples)
            job.parallel, job.moments = parallel, moments
            job.find_layout(batch_size)
            try:
                with blames_parallel(parallel):
                    found = job.run(batch_size)
            except NotSliceable:  # noise that cannot be drawn by row: as many rows as share a state
                found = job.run(ROWS_PER_SEED, exactly=True)
            job.check_guide_is_for_the_model()
            forgotten = job.forgotten_latents(guide)
            unheard = set(job.unheard()) - set(forgotten)
    notes = plan.warnings()
    if unheard:
        notes.append(warning_of_unheard(unheard))
    if not found and plan.factors:
        notes.append(warning_of_factors_alone(plan.factors))
    if batch_size is not None and not rows:
        notes.append(NOTE_OF_UNUSED_BATCH_SIZE)
    notes += call.warning_of_runs(plan.joint_rows)
    if forgotten:
        unknown, anew = set(draws) - plan.met, any(plan.free.values())
        notes.append(came_from_prior(forgotten, unknown, drawn_anew=anew))
    call.warn(notes)
    _check_finite(found, args, kwargs)
    return found


def _check_finite(found: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses predictions that are not finite where inputs are not, either."""
    cause = entries_not_finite(args, kwargs)
    bad = [name for name, value in found.items() if cause and not bool(value.isfinite().all())]
    if bad:
        raise NonFiniteError(f"{cause}. What is predicted of {bad} is not finite.")
