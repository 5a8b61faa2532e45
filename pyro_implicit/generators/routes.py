"""The routes that were found for the Jacobians of generators."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["remember_route", "route_of"]

_ROUTES: WeakKeyDictionary[nn.Module, dict[bool, str | None]] = WeakKeyDictionary()


def remember_route(generator: nn.Module, route: str | None) -> None:
    """
    Keeps a route for as long as the generator lives, for the mode that it is in.

    :param generator: the generator.
    :param route: ``"forward"``, ``"reverse"`` or ``"products"``; None for what torch does first.
    """
    _ROUTES.setdefault(generator, {})[generator.training] = route


def route_of(generator: nn.Module) -> str | None:
    """
    The route that was found for a generator in its mode.

    :param generator: the generator.
    :returns: what :func:`remember_route` was given, None where nothing was.
    """
    return _ROUTES.get(generator, {}).get(generator.training)
