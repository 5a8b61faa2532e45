"""A generator from whatever a user may pass as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pyro_implicit.exceptions import ArgumentError, ImplicitError, ShapeError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.modes import evaluated
from pyro_implicit.generators.module import ModuleGenerator, first_width
from pyro_implicit.generators.nnj import NnjGenerator, pushes_jacobians

__all__ = ["as_generator"]


def as_generator(generator: Any, output_dim: int, noise_dim: int | None = None) -> Generator:
    """
    Makes a :class:`~pyro_implicit.generators.Generator` of what a user may pass.

    :param generator: a generator; any other ``nn.Module`` from ``(n, noise_dim)`` to
        ``(n, output_dim)``, whose Jacobians come from StochMan if its layers do; or a callable (a
        class, say) that makes one of these from ``output_dim``.
    :param int output_dim: number of latents to generate.
    :param int noise_dim: noise dimensions, needed for a plain module only; by default those of
        its first linear layer.
    :returns: the generator.
    :raises ArgumentError: if it is none of these, or the noise dimension cannot be found.
    :raises ShapeError: if the number of outputs is another.
    """
    if not isinstance(generator, nn.Module) and callable(generator):
        generator = _made(generator, output_dim)
    if not isinstance(generator, nn.Module):
        raise ArgumentError(
            f"generator is a {type(generator).__name__}; expected a Generator, an nn.Module, or a "
            "callable that makes one from the number of outputs, e.g. generator=ResidualGenerator."
        )
    if not isinstance(generator, Generator):
        noise_dim = noise_dim or _first_in_features(generator)
        return _checked_module(generator, noise_dim, output_dim)
    if generator.output_dim != output_dim:
        raise ShapeError(
            f"generator has output_dim={generator.output_dim}, but the guide's latents have "
            f"{output_dim} entries in all; write output_dim={output_dim}."
        )
    return generator


def _made(maker: Callable[..., Any], output_dim: int) -> Any:
    """
    What a callable makes of the number of outputs.

    :raises ArgumentError: if it wants more than that.
    """
    try:
        inspect.signature(maker).bind(output_dim)
    except TypeError as error:
        name = getattr(maker, "__name__", type(maker).__name__)
        raise ArgumentError(
            f"generator={name} is called with the number of outputs alone, and wants others "
            f"({error}). Write generator=lambda m: {name}(...), with m where the outputs go."
        ) from error
    except ValueError:  # nobody knows its signature
        pass
    return maker(output_dim)


def _first_in_features(module: nn.Module) -> int:
    width = first_width(module)
    if width is not None:
        return width
    raise ArgumentError(
        f"cannot tell the noise dimension of {type(module).__name__}: write noise_dim=..., or "
        "wrap it as ModuleGenerator(module, noise_shape, output_dim)."
    )


def _checked_module(module: nn.Module, noise_dim: int, output_dim: int) -> ModuleGenerator:
    """
    Wraps ``module`` and draws once, so that a wrong size is told here and not in a step.

    It does so in evaluation mode, so that the draw leaves no trace in it.
    """
    kind = NnjGenerator if pushes_jacobians(module) else ModuleGenerator
    wrapped = kind(module, (noise_dim,), output_dim)
    example = next(iter(module.parameters()), torch.zeros(()))
    with torch.no_grad(), evaluated(module):
        try:
            wrapped(torch.zeros(2, noise_dim, dtype=example.dtype, device=example.device))
        except ImplicitError:
            raise
        except Exception as error:  # of whatever a user's module is made of
            said = str(error).strip() or f"{type(error).__name__}."
            raise ShapeError(
                f"the generator {type(module).__name__} fails on noises of shape (2, {noise_dim}) "
                f"(with the context at the end, if the guide is conditional): {said} It must take "
                "(n, noise_dim): write another noise_dim, or wrap it as ModuleGenerator(module, "
                "noise_shape, output_dim)."
            ) from error
    return wrapped
