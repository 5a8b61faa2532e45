"""From what a user asks a fit for to a run of it: objective, rate, data and what is told first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pyro import poutine

from pyro_implicit._warn import warn
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.model_parameters import WatchedParameters
from pyro_implicit.guides.seen_observations import warning_of_seen_observations
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.masks.masked_latents import warning_of_hidden_values
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.training.fitting.all_rows import all_rows
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.checks.better_by_row import warning_of_better_by_row
from pyro_implicit.training.fitting.checks.first_look import first_look
from pyro_implicit.training.fitting.default_objective import default_objective
from pyro_implicit.training.fitting.pace.default_rate import default_rate, rate_times
from pyro_implicit.training.fitting.pace.learning_rate import LearningRate
from pyro_implicit.training.fitting.parameters.adopted_parameters import AdoptedParameters
from pyro_implicit.training.fitting.result import FitResult
from pyro_implicit.training.fitting.run import Run
from pyro_implicit.training.fitting.validation import Validation, held_arguments, held_keywords

__all__ = ["Request", "prepared_run"]


@dataclass(frozen=True)
class Request:
    """
    What a fit is asked for, once it was checked.

    :param model: the model.
    :param guide: its guide.
    :param Arguments arguments: of both, batch by batch.
    :param objective: None for that which suits them, or that of ``resume``.
    :param int limit: of all steps.
    :param float lr: the first learning rate; None for that which suits the guide.
    :param validation: held-out arguments, a function, or None.
    :param FitResult resume: what the run goes on from, or None.
    :param bool jit_compile: whether recorded steps are compiled.
    """

    model: Any
    guide: Any
    arguments: Arguments
    objective: Any
    limit: int
    lr: float | None
    validation: Any
    resume: FitResult | None
    jit_compile: bool

    @property
    def look(self) -> dict[str, bool]:
        """How model and data are looked at."""
        objective = self.objective
        if objective is None and self.resume is not None:
            objective = self.resume.objective
        nesting = math.inf if objective is None else getattr(objective, "max_plate_nesting", 0)
        in_batches = self.arguments.batches is not None
        return {"in_batches": in_batches, "in_plates": nesting == math.inf}


def prepared_run(
    request: Request, watched: WatchedParameters, adopted: AdoptedParameters, hints: list[str]
) -> Run:
    """
    Looks at model and data, builds the guide, and chooses what was left open.

    :param Request request: what is asked for.
    :param watched: the parameters that the model was fitted with before.
    :param adopted: those that the guide takes over.
    :param hints: what a user should know, which is added to.
    :returns: a run, taken up where there is something to resume.
    :raises ImplicitError: for what does not fit together.
    """
    model, guide, arguments = request.model, request.guide, request.arguments
    some, named = arguments.peek()
    first_look(model, some, named, **request.look)
    notes = watched.look(model, some, named)  # before anything moves
    rows = None if arguments.batches is None else _all_rows(model, guide, arguments)
    objective = _objective(request, hints)
    rate = default_rate(guide, arguments) if request.lr is None else request.lr
    times = rate_times(guide, rate) if request.lr is None else None
    watch = _validation(request, hints)
    run = Run(
        model, guide, objective, arguments, LearningRate(rate, request.limit), watch, rows, times
    )
    run.jit_compile = request.jit_compile
    if request.resume is not None:
        run.resume(request.resume)
    run.first_steps.adopted = adopted
    hints += [*notes, *warning_of_better_by_row(guide)]
    if arguments.batches is not None:
        run.course.retreat.num_batches = arguments.num_batches
    return run


def _all_rows(model: Any, guide: Any, arguments: Arguments) -> Any:
    """All rows of small data in batches; a guide starts with them, and not with one batch."""
    rows = all_rows(model, arguments)
    if rows is not None and isinstance(guide, ImplicitGuide):
        with poutine.block():
            guide(*rows[0], **rows[1])
    return rows


def _objective(request: Request, hints: list[str]) -> Any:
    """That which is asked for, or goes on, or suits model and guide."""
    model, guide, objective = request.model, request.guide, request.objective
    some, named = request.arguments.peek()
    if objective is None and request.resume is not None:
        objective = request.resume.objective
    if objective is None:
        with explained_errors(some, named, guide):
            objective, chosen = default_objective(
                model, guide, some, named, others=request.arguments.others()
            )
            hints += chosen
    if not isinstance(getattr(objective, "objective", objective), ParticleObjective):
        for text in warning_of_hidden_values(model, some, named):
            warn(text)
    return objective


def _validation(request: Request, hints: list[str]) -> Validation | None:
    """What scores the run, and what a conditional guide sees of held-out observations."""
    model, guide, what = request.model, request.guide, request.validation
    kept = held_keywords(model, what, request.arguments.args, request.arguments.kwargs)
    if what is None:
        return None
    held = held_arguments(what)
    seen = None if held is None else warning_of_seen_observations(model, guide, held, kept)
    hints += [] if seen is None else [f"validation: {seen}"]
    return Validation(what, model, guide, kept)
