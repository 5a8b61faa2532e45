"""
Errors of the package: one small tree; each also is the builtin that fits it. And its hints.

A message names the site or argument, what was found, what was expected, and what to write instead.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "DensityError",
    "GuideError",
    "ImplicitError",
    "LayerError",
    "MissingExtraError",
    "NonFiniteError",
    "OutOfMemoryError",
    "PerformanceHint",
    "ShapeError",
    "SiteError",
    "StateError",
]


class ImplicitError(Exception):
    """Base of all errors raised on purpose by ``pyro_implicit``."""


class ArgumentError(ImplicitError, ValueError):
    """An argument has a value outside of what is documented."""


class ShapeError(ImplicitError, ValueError):
    """A tensor has another shape than the one expected."""


class SiteError(ImplicitError, ValueError):
    """A sample site (or its absence) that the called method cannot handle."""


class GuideError(ImplicitError, ValueError):
    """A guide and an objective that do not belong together."""


class DensityError(ImplicitError, NotImplementedError):
    """The density of an implicit distribution was asked for; nobody can evaluate it."""


class LayerError(ImplicitError, NotImplementedError):
    """A network layer that cannot be evaluated correctly in the requested mode."""


class NonFiniteError(ImplicitError, ArithmeticError):
    """A term of an objective is NaN or infinite."""


class OutOfMemoryError(ImplicitError, MemoryError):
    """Something that cannot fit into memory was asked for; nothing was allocated yet."""


class StateError(ImplicitError, RuntimeError):
    """A saved state that does not fit, or is not one of ours."""


class MissingExtraError(ImplicitError, ImportError):
    """An optional dependency is absent; the message names the extra to install."""


class PerformanceHint(UserWarning):
    """Something works, and would be several times as fast if written otherwise."""
