"""Discrete latents whose values are all listed: errors of models that are not made for it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro import poutine
from pyro.infer.util import validation_enabled
from pyro.poutine.enum_messenger import EnumMessenger

from pyro_implicit.exceptions import ArgumentError, ImplicitError, ShapeError, SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import run_summed_out
from pyro_implicit.handlers.enumeration.listed_rows import CoupledRowsError, check_listed_rows
from pyro_implicit.handlers.enumeration.sum_out import OutsidePlateError
from pyro_implicit.handlers.errors.explained_errors import RAW_ERRORS
from pyro_implicit.handlers.errors.type_errors import first_line
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.training.fitting.arguments import Arguments

__all__ = ["blames_listed_values", "check_plates_of_listed"]

#: what torch and Pyro say where sizes do not agree
_PATTERN_OF_SIZE_ERRORS = re.compile(
    "shape|size|dimension|broadcast|out of bounds|out of range", re.IGNORECASE
)


def check_plates_of_listed(model: Any, guide: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """
    Refuses what Pyro's ``TraceEnum_ELBO`` sums wrongly, without a word.

    Parameters that are made here are taken back: the run makes them by its seed.

    :param model: a model.
    :param guide: its guide, which draws no discrete latents.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :raises SiteError: if a site depends on discrete latents of a plate that it is not in, or of
        other rows of its plate.
    """
    try:
        with unseen_run(), torch.no_grad(), validation_enabled(False):
            drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            values = {name: drawn.nodes[name]["value"] for name in drawn.stochastic_nodes}
            run_summed_out(model, args, kwargs, lambda site: None, values=values)
            check_listed_rows(model, args, kwargs, values, None)
    except (OutsidePlateError, CoupledRowsError):
        raise
    except Exception:  # what else there is to say of it, the steps will
        return


@contextmanager
def blames_listed_values(model: Any, arguments: Arguments) -> Iterator[None]:
    """
    Says of an error within that listed values of discrete latents have caused it, if so.

    :param model: the model that is fitted.
    :param Arguments arguments: those of the steps.
    :raises SiteError: where the model runs with drawn values, and fails on all at once.
    """
    try:
        yield
    except (ArgumentError, ShapeError, *RAW_ERRORS) as error:
        raw = error.__cause__ if isinstance(error, (ArgumentError, ShapeError)) else error
        if not isinstance(raw, RAW_ERRORS) or isinstance(raw, ImplicitError):
            raise  # ours from the beginning, and about something else
        if not (_PATTERN_OF_SIZE_ERRORS.search(first_line(raw)) and _is_in_enumerated(raw)):
            raise
        names = _listed(model, *(arguments.last or arguments.peek()))
        if not names:
            raise
        raise SiteError(
            f"the model runs with one value of its discrete latents {names}, and fails where they "
            f"are summed out: {first_line(raw)}. They then have all their values, in a dimension "
            "in front of those of the plates, and size 1 in a plate whose rows have the same ones. "
            "What depends on the latents of a plate belongs into it; where each datum depends on "
            "all of them, make a site of each by a loop, for i in pyro.plate('plate', 5). Write "
            "(X * w).sum(-1), not X @ w, and Vindex(locs)[..., z] (pyro.ops.indexing), not locs[z]."
        ) from error


def _is_in_enumerated(error: BaseException) -> bool:
    """Whether an error was raised within a program whose latents have all their values."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(frame.f_locals.get("context"), EnumMessenger) for frame in frames)


@torch.no_grad()
def _listed(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the latents to be enumerated of a model that runs with a value of each."""
    try:
        with unseen_run():
            nodes = poutine.trace(model).get_trace(*args, **kwargs).nodes.values()
    except Exception:  # whatever a model raises: the latents are not to blame
        return []
    sites = [node for node in nodes if node["type"] == "sample" and not node["is_observed"]]
    return sorted(node["name"] for node in sites if (node["infer"] or {}).get("enumerate"))
