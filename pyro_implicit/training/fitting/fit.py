"""Train a guide: an objective, a learning rate and a stop rule by default."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import SVI

from pyro_implicit._checks import (
    check_count,
    check_flag,
    check_guide,
    check_instance,
    check_model,
    check_number,
    check_seed,
    shown,
)
from pyro_implicit._inference_mode import refuse_inference_mode
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._progress import hidden_progress, progress_bar
from pyro_implicit._random import RandomStream
from pyro_implicit._signature import in_order
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.argument_order import check_order
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.draw_quantiles import DrawQuantiles
from pyro_implicit.guides.members import members_of
from pyro_implicit.guides.model_parameters import WatchedParameters
from pyro_implicit.guides.since_fit import forget_fit, remember_fit
from pyro_implicit.guides.unfilled_directions import unfilled
from pyro_implicit.handlers.errors.named_arguments import check_holds_numbers
from pyro_implicit.handlers.held.held_sites import refuse_condition_around
from pyro_implicit.handlers.masks.masked_latents import LOSS_IS_NO_BOUND
from pyro_implicit.handlers.networks.evaluation_mode import random_layers_told
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.checks.collected_warnings import collected_warnings
from pyro_implicit.training.fitting.checks.first_look import explained_steps
from pyro_implicit.training.fitting.checks.listed_values import blames_listed_values
from pyro_implicit.training.fitting.checks.missed_peaks import MissedPeaks, missed_peaks
from pyro_implicit.training.fitting.checks.other_model import blames_other_model
from pyro_implicit.training.fitting.checks.shared_scales import warning_of_shared_scales
from pyro_implicit.training.fitting.checks.wrong_widths import wrong_widths
from pyro_implicit.training.fitting.one_thread import one_thread
from pyro_implicit.training.fitting.parameters.adopted_parameters import AdoptedParameters
from pyro_implicit.training.fitting.prepared_run import Request, prepared_run
from pyro_implicit.training.fitting.result import FitResult
from pyro_implicit.training.fitting.run import Run
from pyro_implicit.training.fitting.validation import check_validation
from pyro_implicit.training.recorded import RecordedObjective

__all__ = ["fit"]

_DEFAULT_NUM_STEPS = 10_000
_MIN_STEPS_TO_JUDGE_GUIDE = 400  # after which it should be near the posterior
_SHARE_OF_A_SMALL_PEAK = 0.05  # of the mass that a guide does not reach


def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    objective: Any = None,
    num_steps: int | None = None,
    lr: float | None = None,
    batches: Any = None,
    validation: Any = None,
    progress: bool = True,
    seed: int | None = None,
    resume: FitResult | None = None,
    jit_compile: bool = False,
    **kwargs: Any,
) -> FitResult:
    r"""
    Trains a guide, and the parameters of the model, until the objective no longer rises.

    It does nothing that a loop over ``SVI.step`` could not do, and decides four things:

    * *objective*: :class:`~pyro_implicit.LinearisedELBO` where the generator's determinant is
      cheap (the default guide up to 1024 latents), else :class:`~pyro_implicit.LanczosELBO`; for
      guides of Pyro's ``Trace_ELBO``, or ``TraceEnum_ELBO`` if latents are marked for enumeration.
    * *draws*: 1 to 32 in each step, fewer for more latents; vectorised if the model allows it.
    * *learning rate*: Adam at ``lr`` until the loss is level, then cooled to a hundredth of it.
    * *the end*: the loss is level when the mean of its last quarter is no longer below that of the
      quarter before it, by more than its noise explains; the run ends when the rate is cold. With
      ``validation``, ten scores without a better one end it too, and the best parameters come back.

    Steps that are not finite are skipped; a run that has lost its way goes back to parameters that
    were good; Ctrl-C keeps what was reached. What was chosen and noticed is in the result. Networks
    are run in the mode that they are in, training or evaluation. :doc:`What fit decides
    </howto/fit>` has the numbers behind all this.

    :param model: a Pyro model.
    :param guide: its guide, of any kind.
    :param args: arguments of both: the whole data.
    :param objective: any objective of this package or of Pyro.
    :param int num_steps: limit of all steps, 10 000 by default; those of a resumed run count.
    :param float lr: the first learning rate; by default 0.002 with an
        :class:`~pyro_implicit.generators.AutoregressiveGenerator` (0.02 if it has one latent),
        0.005 without.
    :param batches: instead of ``args``: a ``DataLoader`` or any other iterable of tuples of
        arguments, gone through again and again; a dictionary is keyword arguments, a tensor the
        one argument.
    :param validation: held-out arguments of the model as a tuple, or a dictionary by name, judged
        by their mean :func:`~pyro_implicit.log_predictive_density`, or a function without
        arguments whose value should rise.
    :param bool progress: whether to show a progress bar with the loss and its terms, and one of a
        guide's start where that takes long.
    :param int seed: of all that is drawn, so that the same call gives the same numbers; random
        numbers outside go on as if nothing had been drawn. None: one that torch draws. A run that
        is resumed goes on with its own.
    :param FitResult resume: go on from this result, with the same model, guide and
        validation, whose best parameters and score are carried over. A run that was interrupted
        then gives the numbers of one that was not (with whole data); one that had ended begins anew
        at the full rate, up to ``num_steps``.
    :param bool jit_compile: compile the recorded steps of small models by ``torch.compile``, which
        needs a C++ compiler, and ten seconds the first time, one second the next; numbers change
        by rounding (:class:`~pyro_implicit.training.RecordedObjective`).
    :param kwargs: keyword arguments of model and guide.
    :returns: history, reason of the end, warnings; it can be printed and plotted.
    :raises ArgumentError: for bad values, for ``seed`` with ``resume``, for data of another type
        than the network's, and for options that neither ``fit`` nor the model has.
    :raises NonFiniteError: after 20 steps in a row without a finite loss and no parameters to go
        back to, naming the site; for observations that are NaN.
    :raises ShapeError: for no rows, for observations that do not fit their distribution or
        plate, and for a guide of a model with latents of other shapes, before anything is fitted.
    :raises SiteError: for batches without observations, if a latent is that of some rows; else a
        warning says that the model observes nothing.
    :raises StateError: if ``resume`` is the result of a guide with other parameters; within
        ``torch.inference_mode()``, and while another thread is in ``fit``.

    Example::

        guide = HyperNetworkGuide(model)
        result = fit(model, guide, x, y, seed=0)
        print(result)
        result.plot()
    """
    refuse_inference_mode("fit")
    refuse_condition_around("fit")
    check_model(model)
    check_guide(guide)
    check_order(model, "fit(model, guide, ...)", guide)
    _refuse_ensemble(guide)
    refuse_diverged(guide)
    check_misspelt(fit, model, kwargs)
    check_holds_numbers(args, kwargs)
    kwargs = in_order(model, kwargs)
    limit = _DEFAULT_NUM_STEPS if num_steps is None else check_count("num_steps", num_steps)
    lr = None if lr is None else check_number("lr", lr, above=0)
    check_flag("progress", progress)
    check_flag("jit_compile", jit_compile)
    check_validation(validation)
    _check_objective(objective)
    if isinstance(objective, RecordedObjective):  # each fit makes its own
        objective, jit_compile = objective.objective, jit_compile or objective.jit_compile
    _check_resume(resume, limit, seed)
    seed = None if seed is None else check_seed("seed", seed)
    arguments = Arguments(args, batches, kwargs)
    request = Request(
        model, guide, arguments, objective, limit, lr, validation, resume, jit_compile
    )
    start = time.perf_counter()
    hints: list[str] = []
    forget_fit(guide)
    watched, adopted = WatchedParameters(guide), AdoptedParameters(guide)
    stream = RandomStream(int(torch.randint(2**31, ())) if seed is None else seed)
    with one_thread("fit"), stream, torch.enable_grad():
        made = blames_other_model(model, guide, arguments)
        listed = blames_listed_values(model, arguments)
        told = random_layers_told()  # by the first look: the steps have their randomness
        with collected_warnings(hints), hidden_progress(not progress), made, listed, told:
            run = prepared_run(request, watched, adopted, hints)
            with explained_steps(model, guide, run.objective, arguments, **request.look):
                result = _finished(run, start, hints, progress, resume)
    WatchedParameters(guide).remember()
    return result


def _refuse_ensemble(guide: Any) -> None:
    members = members_of(guide)
    if members and isinstance(guide, DrawQuantiles):
        raise ArgumentError(
            f"guide is an ensemble of {len(members)}, whose members are fitted by themselves: "
            "fit(model, one, ...) for each, and EnsembleGuide(members) of them then."
        )


def _finished(
    run: Run, start: float, hints: list[str], progress: bool, resume: FitResult | None
) -> FitResult:
    """Trains, and puts together what came of it."""
    limit = run.course.rate.num_steps
    with progress_bar(shown=progress, total=limit, initial=len(run.history), desc="fit") as bar:
        reason = run.train(bar)
        while reason == "converged" and run.may_go_on and _are_widths_wrong(run):
            run.go_on()
            reason = run.train(bar)
    state = run.state(reason)
    scores = {}
    if run.validation is not None:
        if reason != "interrupted":
            run.validation.restore()
        scores = run.validation.scores
    remember_fit(run.model, run.guide, *run.last_call)
    try:
        found = _found(run, reason)
    except KeyboardInterrupt:
        found = [
            "the looks after the last step were interrupted: what the guide lacks is not known"
        ]
    earlier = 0.0 if resume is None else resume.seconds
    return FitResult(
        history=run.history,
        reason=reason,
        objective=run.objective,
        seconds=earlier + time.perf_counter() - start,
        rates=run.rates,
        terms=run.terms,
        scores=({} if resume is None else dict(resume.scores)) | scores,
        warnings=[*run.notes(reason), *found, *hints],
        state=state,
        promise="" if any(LOSS_IS_NO_BOUND in text for text in hints) else _promise(run),
        start=_start_of(run.guide) or ("" if resume is None else resume.start),
    )


def _found(run: Run, reason: str) -> list[str]:
    """What the guide lacks, where the run was long enough to expect nothing."""
    if reason == "interrupted" or len(run.history) < _MIN_STEPS_TO_JUDGE_GUIDE:
        return []
    if isinstance(run.objective, ImplicitELBO) and not run.objective.is_bound_for(run.guide):
        return _thin(run.guide) or warning_of_shared_scales(run.guide)
    if not _is_after_posterior(run) or run.first_steps.lacks_gradient:
        return []
    peaks, deviations = _looks(run)
    return [*peaks, *deviations]


def _is_after_posterior(run: Run) -> bool:
    """Whether the guide's draws can be held to the posterior of all data."""
    if not isinstance(run.objective, ImplicitELBO) or _is_weighted(run.objective):
        return False
    if run.arguments.batches is not None or isinstance(run.guide, ConditionalGuide):
        return False
    return run.objective.is_bound_for(run.guide)


def _looks(run: Run) -> tuple[list[str], list[str]]:
    """Peaks that are missed, and if there are none deviations that are off: once at a step."""
    step = len(run.history)
    if run.looks is None or run.looks[0] != step:
        missed = _missed(run)
        is_small = missed.share < _SHARE_OF_A_SMALL_PEAK  # and steps may mend deviations elsewhere
        told = [missed.text] if missed.text else []
        run.looks = step, told, _widths(run) if is_small else []
    return run.looks[1:]


def _missed(run: Run) -> MissedPeaks:
    losses = run.losses_now()  # the last steps may be of parameters that were replaced
    if not losses and not run.is_replaced:
        losses = run.history[-max(len(run.history) // 10, 1) :]
    bound = -sum(losses) / len(losses) if losses else math.nan
    return missed_peaks(run.guide, run.model, *_data(run), bound)


def _widths(run: Run) -> list[str]:
    return wrong_widths(run.guide, run.model, *_data(run), run.objective.vectorize_particles)


def _data(run: Run) -> tuple[Any, Any]:
    return run.arguments.args, run.arguments.kwargs


def _are_widths_wrong(run: Run) -> bool:
    """Whether a level loss hides deviations that are off, where more steps may mend them."""
    try:
        is_long = len(run.history) >= _MIN_STEPS_TO_JUDGE_GUIDE
        if run.first_steps.lacks_gradient:  # no step would mend it, and it is told
            return False
        return is_long and _is_after_posterior(run) and bool(_looks(run)[1])
    except KeyboardInterrupt:
        return False  # the run has ended: what it has is kept


def _thin(guide: Any) -> list[str]:
    """Directions that a guide leaves to its output noise."""
    if not isinstance(guide, ImplicitGuide) or isinstance(guide, ConditionalGuide):
        return []
    found = unfilled(guide.samplers)
    return [] if found is None else [str(found)]


def _promise(run: Run) -> str:
    """What the loss is worth with this guide, in words."""
    objective = run.objective
    if not isinstance(objective, ImplicitELBO) or objective.power != 0:
        return ""
    if _is_weighted(objective):
        return "weighted, so that the guide is not after the posterior"
    if objective.is_bound_for(run.guide):
        return "a lower bound on the evidence"
    where = "(guide)" if isinstance(run.guide, ImplicitGuide) else " of its implicit parts"
    return f"no bound: it may promise more than the evidence, see entropy_report{where}"


def _is_weighted(objective: ImplicitELBO) -> bool:
    """Whether it is after something else than the posterior."""
    return objective.kl_weight != 1 or objective.prior_weight != 1


def _start_of(guide: Any) -> str:
    """How the guide, or the guides that it is made of, began."""
    parts = guide.modules() if isinstance(guide, torch.nn.Module) else ()
    reports = [getattr(part, "start_report", None) for part in parts]
    return "\n".join(str(report) for report in reports if report is not None)


def _check_objective(objective: Any) -> None:
    if isinstance(objective, SVI):
        raise ArgumentError(
            "objective is an SVI, with a model, a guide and an optimiser of its own. Hand over "
            "what it minimises alone, such as objective=Trace_ELBO(4); fit optimises by itself."
        )
    usable = callable(getattr(objective, "loss_and_grads", None))
    if objective is not None and (isinstance(objective, type) or not usable):
        raise ArgumentError(
            f"objective={shown(objective)}; expected an objective, such as "
            "LinearisedELBO(num_particles=8), or None for one that is chosen by size."
        )


def _check_resume(resume: Any, limit: int, seed: Any) -> None:
    if resume is None:
        return
    check_instance("resume", resume, FitResult, "the result of an earlier fit")
    if seed is not None:
        raise ArgumentError("resume goes on with the random numbers of its run: leave seed out.")
    is_open = resume.reason == "interrupted" and resume.num_steps == limit  # the last score
    if resume.num_steps >= limit and not is_open:
        raise ArgumentError(
            f"num_steps={limit}, and the run to resume has taken {resume.num_steps} already: write "
            "a larger number, which counts both."
        )
