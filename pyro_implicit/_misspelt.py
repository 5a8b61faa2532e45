"""Options that are misspelt would go to the model: they are named at once."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyro_implicit._signature import parameters_of
from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_class_options", "check_misspelt"]

_OPTIONS_OF_OPTIMISERS = ("optim", "optimizer", "optimiser")

#: options of this package by what other libraries call them
_NAMES_IN_OTHER_LIBRARIES = {
    "learning_rate": "lr",
    "loss": "objective",
    "elbo": "objective",
    "steps": "num_steps",
    "progress_bar": "progress",
    "dataloader": "batches",
    "loader": "batches",
    "num_draws": "num_samples",
    "samples": "num_samples",
    "draws": "num_samples",
}
#: options of this package by what other classes of it and of Pyro call them
_NAMES_IN_OTHER_CLASSES = {
    "form": "likelihood",
    "num_samples": "num_particles",
    "num_draws": "num_particles",
    "beta": "kl_weight",
    "temperature": "kl_weight",
    "hidden": "hidden_dims",
}
_ADVICE_ON_EPOCHS = (
    "fit counts steps, of a batch each, and no epochs: write num_steps=num_epochs * len(batches)."
)
_ADVICE_ON_CHAIN_LENGTHS = (
    "refine counts gradients of each chain, the warm-up included: num_steps=, of num_chains= "
    "chains; posterior_draws(chains, n) then has n draws."
)
_ADVICE_ON_OPTIMISERS = (
    "fit has Adam, with lr=; any other goes into SVI(model, guide, optim, loss)."
)
#: by function, for names that stand for none of its options
_ADVICE_BY_FUNCTION = {
    "fit": dict.fromkeys(_OPTIONS_OF_OPTIMISERS, _ADVICE_ON_OPTIMISERS)
    | dict.fromkeys(("epochs", "num_epochs"), _ADVICE_ON_EPOCHS),
    "refine": dict.fromkeys(("num_samples", "num_draws", "warmup_steps"), _ADVICE_ON_CHAIN_LENGTHS),
}


def check_misspelt(
    function: Callable[..., Any], model: Callable[..., Any], kwargs: Mapping[str, Any]
) -> None:
    """
    Refuses keyword arguments that the model does not take.

    :param function: that was called with them, whose options are keyword-only.
    :param model: a Pyro model, or whatever takes them.
    :param kwargs: what is to be handed on to it.
    :raises ArgumentError: for a name that is none of its arguments, with the option that is near.
    """
    if not kwargs:
        return
    taken = parameters_of(model)
    if taken is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return
    accepted = inspect.signature(function).parameters.values()
    options = [p.name for p in accepted if p.kind is inspect.Parameter.KEYWORD_ONLY]
    own = function.__name__
    aliases = {alias: name for alias, name in _NAMES_IN_OTHER_LIBRARIES.items() if name in options}
    for name in kwargs:
        if name in taken:
            continue
        near = difflib.get_close_matches(name, [*options, *aliases], 1)
        meant = aliases.get(near[0], near[0]) if near else None
        hint = f"Did you mean {meant}=?" if meant else f"{own} has {', '.join(options)}."
        hint = _ADVICE_BY_FUNCTION.get(own, {}).get(name, hint)
        raise ArgumentError(
            f"{name}= is neither an option of {own} nor an argument of the model, which takes "
            f"{', '.join(taken) or 'none'}. {hint}"
        )


def check_class_options(kind: type, given: Collection[str]) -> None:
    """
    Refuses options that neither a class nor one of its bases has taken, as a wrong name.

    :param kind: the class that a user has written.
    :param given: names of the options that are left over in the last base.
    :raises ArgumentError: for the first, with the option that is near.
    """
    if not given:
        return
    options: list[str] = []
    for base in kind.__mro__:
        if "__init__" not in vars(base) or not base.__module__.startswith("pyro_implicit."):
            continue
        own = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        options += [p.name for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY]
        options += [p.name for p in own if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    name = next(iter(given))
    others = [_NAMES_IN_OTHER_CLASSES[name]] if _NAMES_IN_OTHER_CLASSES.get(name) in options else []
    near = others or difflib.get_close_matches(name, options, 1)
    known = ", ".join(dict.fromkeys(options))
    hint = f"Did you mean {near[0]}=?" if near else f"It has {known}."
    raise ArgumentError(f"{kind.__name__} has no option {name}=. {hint}")
