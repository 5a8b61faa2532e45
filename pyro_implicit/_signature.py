"""The parameters that a program takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

__all__ = ["arguments_by_place", "in_order", "leading_arguments", "parameters_of", "places_of"]


def parameters_of(program: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """
    The parameters of a program's signature.

    :param program: a model, a guide or any function.
    :returns: by name, in order; None for a callable that does not tell.
    """
    try:
        return inspect.signature(_what_is_run(program)).parameters
    except (TypeError, ValueError):
        return None


def _what_is_run(program: Callable[..., Any]) -> Callable[..., Any]:
    """A module's own call takes anything, and hands it to ``forward`` if it has one."""
    if isinstance(program, nn.Module) and type(program).forward is not nn.Module.forward:
        return program.forward
    return program


def places_of(program: Callable[..., Any]) -> list[str]:
    """
    The names of what a program takes by place.

    :param program: a model.
    :returns: in order; not those behind ``*args``.
    """
    found = []
    for name, parameter in (parameters_of(program) or {}).items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        found.append(name)
    return found


def leading_arguments(
    program: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """
    The first arguments of a call in the order of the program's parameters, however they were given.

    :param program: a model.
    :param tuple args: its positional arguments.
    :param dict kwargs: its keyword arguments.
    :returns: the positional ones, and those by keyword that come right after them.
    """
    return arguments_by_place(places_of(program), args, kwargs)


def arguments_by_place(
    names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """
    The first arguments of a call, however they were given.

    :param names: what :func:`places_of` says of the program.
    :param tuple args: its positional arguments.
    :param dict kwargs: its keyword arguments.
    :returns: the positional ones, and those by keyword that come right after them.
    """
    found = list(args)
    for name in names[len(args) :]:
        if name not in kwargs:
            break
        found.append(kwargs[name])
    return tuple(found)


def in_order(program: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """
    Keyword arguments in the order of the program's parameters: the first tensor has the rows.

    :param program: a model.
    :param dict kwargs: its keyword arguments.
    :returns: the same, those without a parameter of their name last.
    """
    names = parameters_of(program) or {}
    first = {name: kwargs[name] for name in names if name in kwargs}
    return first | dict(kwargs)
