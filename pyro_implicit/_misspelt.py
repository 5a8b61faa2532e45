"""Options that are misspelt would go to the model: they are named at once."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_misspelt"]

#: what other libraries call them
_ALIASES = {
    "learning_rate": "lr",
    "loss": "objective",
    "elbo": "objective",
    "steps": "num_steps",
    "epochs": "num_steps",
    "num_epochs": "num_steps",
    "progress_bar": "progress",
    "dataloader": "batches",
    "loader": "batches",
    "num_draws": "num_samples",
    "samples": "num_samples",
    "draws": "num_samples",
}


def check_misspelt(
    function: Callable[..., Any], model: Callable[..., Any], kwargs: Mapping[str, Any]
) -> None:
    """
    Refuses keyword arguments that the model does not take.

    :param function: that was called with them, whose options are keyword-only.
    :param model: a Pyro model.
    :param kwargs: what is to be handed on to it.
    :raises ArgumentError: for a name that is none of its arguments, with the option that is near.
    """
    try:
        taken = inspect.signature(model).parameters
    except (TypeError, ValueError):  # a callable that does not tell
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return
    accepted = inspect.signature(function).parameters.values()
    options = [p.name for p in accepted if p.kind is inspect.Parameter.KEYWORD_ONLY]
    own = function.__name__
    aliases = {alias: name for alias, name in _ALIASES.items() if name in options}
    for name in kwargs:
        if name in taken:
            continue
        near = difflib.get_close_matches(name, [*options, *aliases], 1)
        meant = aliases.get(near[0], near[0]) if near else None
        hint = f"Did you mean {meant}=?" if meant else f"{own} has {', '.join(options)}."
        raise ArgumentError(
            f"{name}= is an option of {own} no more than an argument of the model, which takes "
            f"{', '.join(taken) or 'none'}. {hint}"
        )
