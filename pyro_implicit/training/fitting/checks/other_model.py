"""Guides that were made for another model than the one that is fitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from pyro_implicit.exceptions import GuideError, ImplicitError, ShapeError
from pyro_implicit.guides.held_data import model_of
from pyro_implicit.guides.program_print import unconditioned
from pyro_implicit.handlers.errors.type_errors import first_line
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.observations.other_shape import check_event
from pyro_implicit.handlers.pointwise import latent_sites, run_model
from pyro_implicit.training.fitting.arguments import Arguments

__all__ = ["blames_other_model"]


@contextmanager
def blames_other_model(model: Any, guide: Any, arguments: Arguments) -> Iterator[None]:
    """
    Says of an error within that a guide's own model has caused it, if that is another one.

    :param model: the model that is fitted.
    :param guide: its guide, of any kind.
    :param Arguments arguments: those of the steps.
    :raises GuideError: where the model runs, and that of the guide does not.
    :raises ShapeError: where the model runs, and the guide draws latents of other shapes.
    """
    try:
        yield
    except Exception as error:
        other = unconditioned(model_of(guide))
        is_told = other is None and isinstance(error, ImplicitError)
        if is_told or other is unconditioned(model):
            raise
        args, kwargs = arguments.last or arguments.peek()
        if _failure(model, args, kwargs) is not None:
            raise
        if not isinstance(error, ImplicitError):
            _check_latents(model, guide, args, kwargs, error)
        if other is None:
            raise
        found = _failure(other, args, kwargs)
        if found is None:
            raise
        raise GuideError(
            f"the guide was made for another model ({getattr(other, '__name__', other)}), which "
            f"does not run on these arguments: {first_line(found)}. Make the guide of the model "
            "that is fitted."
        ) from error


def _check_latents(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> None:
    """Refuses draws that are no values of the model's latents."""

    def visit(site: Any) -> None:
        if site["name"] in draws and not site["is_observed"]:
            check_event(site, draws[site["name"]]["value"])

    try:
        with unseen_run():
            draws = latent_sites(guide, args, dict(kwargs))
            run_model(model, args, dict(kwargs), visit)
    except ShapeError as clear:
        raise clear from error
    except Exception:  # of a guide that does not run either
        return


def _failure(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception | None:
    try:
        with unseen_run(), torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        return error
    return None
