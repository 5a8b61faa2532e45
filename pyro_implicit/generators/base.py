"""What a generator promises, and the adapter that makes one of any module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_counts, check_instance
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators.modes import evaluated
from pyro_implicit.ops.jacobian import function_jacobian, is_stochman, stochman_jacobian
from pyro_implicit.ops.linearisation import FunctionLinearisation, Linearisation
from pyro_implicit.ops.logdet import half_log_det

__all__ = ["Generator", "ModuleGenerator", "as_generator", "generator_class"]

_CLASSES: dict[str, type[Generator]] = {}


class Generator(nn.Module, ABC):
    r"""
    A map :math:`g` from noise of shape ``noise_shape`` to ``(output_dim,)``.

    A subclass fills :meth:`forward`. It may also override :meth:`jacobian`, :meth:`linearise` and
    :meth:`half_log_det` where its structure allows something faster than ``torch.func``; objectives
    call nothing else. A subclass with a :meth:`config` of its own is saved with a guide by value,
    and is known by its name from then on.

    :param noise_shape: shape of one noise.
    :param int output_dim: number of outputs ``m``.
    :raises ArgumentError: without a noise dimension or an output.
    """

    #: whether draws fill the whole space without any output noise (``scale=0`` is then allowed)
    full_rank: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config" in vars(cls):
            _CLASSES[cls.__name__] = cls

    def __init__(self, noise_shape: Sequence[int], output_dim: int) -> None:
        super().__init__()
        self.noise_shape = torch.Size(check_counts("noise_shape", noise_shape, empty=False))
        self.output_dim = check_count("output_dim", output_dim)

    @property
    def origin(self) -> Generator:
        """
        The generator that stays from call to call.

        It is this one itself, or what a guide has wrapped for one call
        (:class:`~pyro_implicit.generators.conditioned.Conditioned`).
        """
        return self

    @property
    def noise_dim(self) -> int:
        """Number ``d`` of noise entries."""
        return self.noise_shape.numel()

    def __call__(self, z: Tensor, *args: Any, **kwargs: Any) -> Any:
        """
        :meth:`forward`, after a look at the noise.

        :raises ShapeError: for noise of another shape.
        """
        self.check_noise(z)
        return super().__call__(z, *args, **kwargs)

    def check_noise(self, z: Tensor) -> None:
        """
        Checks that a tensor can be the generator's noise.

        :raises ArgumentError: if ``z`` is no tensor of real numbers.
        :raises ShapeError: if ``z`` does not end in ``noise_shape``.
        """
        shape = self.noise_shape
        check_instance("the noise", z, Tensor, "a tensor (..., *noise_shape)")
        if not z.is_floating_point():
            raise ArgumentError(f"the noise is of type {z.dtype}; expected real numbers.")
        if z.dim() < len(shape) or z.shape[z.dim() - len(shape) :] != shape:
            raise ShapeError(
                f"{type(self).__name__} takes noise of shape (..., {', '.join(map(str, shape))}); "
                f"found {tuple(z.shape)}."
            )

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """
        Maps noise to draws.

        :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
        :returns: draws, shape ``(..., output_dim)``.
        """

    def jacobian(self, z: Tensor) -> Tensor:
        """
        The Jacobian of the map at each noise.

        :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
        :returns: Jacobians, shape ``(..., output_dim, noise_dim)``.
        """
        return function_jacobian(self, z, self.output_dim, len(self.noise_shape))

    def linearise(self, z: Tensor) -> Linearisation:
        """
        Products with the Jacobian for generators too large to form it.

        :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
        :returns: value and derivative at ``z``; by ``torch.func`` unless overridden.
        """
        return FunctionLinearisation(self, z, len(self.noise_shape))

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        r"""
        :math:`\tfrac12 \log\det(J J^\top + \mathrm{diag}(\sigma^2))` at each noise.

        :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
        :param scale: output noise, see :func:`pyro_implicit.ops.logdet.half_log_det`.
        :returns: shape ``(...)``.
        """
        with torch.autocast(z.device.type, enabled=False):
            return half_log_det(self.jacobian(z), scale)

    def config(self) -> dict[str, Any] | None:
        """
        The generator's constructor arguments as plain values, for saving.

        With the class's name as ``"type"``, they let a guide that was saved make the generator
        anew; None if they cannot be told.
        """
        return None


class ModuleGenerator(Generator):
    """
    Any ``nn.Module`` as a generator.

    Jacobians come from StochMan's forward pass if ``module`` is a ``stochman.nnj.Sequential``, else
    from ``torch.func``.

    :param torch.nn.Module module: maps ``(n, *noise_shape)`` to ``(n, output_dim)``.
    :param noise_shape: shape of one noise.
    :param int output_dim: number of outputs.
    """

    def __init__(self, module: nn.Module, noise_shape: Sequence[int], output_dim: int) -> None:
        super().__init__(noise_shape, output_dim)
        self.module = check_instance("module", module, nn.Module, "an nn.Module, built")

    def forward(self, z: Tensor) -> Tensor:
        """
        See :meth:`Generator.forward`.

        :raises ShapeError: if the module takes noise of another shape, or returns another shape
            than ``(n, output_dim)``.
        """
        batch = z.shape[: z.dim() - len(self.noise_shape)]
        try:
            out = self.module(z.reshape(-1, *self.noise_shape))
        except RuntimeError as error:
            width = _first_width(self.module)
            if width in (None, self.noise_shape[-1]):
                raise
            raise ShapeError(self._takes(width)) from error
        if out.shape != (batch.numel(), self.output_dim):
            raise ShapeError(
                f"the generator {type(self.module).__name__} returned shape {tuple(out.shape)} for "
                f"{batch.numel()} noises of shape {tuple(self.noise_shape)}; expected "
                f"{(batch.numel(), self.output_dim)}: one row per noise, one column per latent."
            )
        return out.reshape(*batch, self.output_dim)

    def _takes(self, width: int | None) -> str:
        """The message for a module that takes ``width`` numbers for each noise."""
        takes = "another shape" if width is None else f"(n, {width}), its first linear layer says"
        return (
            f"the module {type(self.module).__name__} takes {takes}; it was given noises of shape "
            f"{('n', *self.noise_shape)} (with the context at the end, if the guide is conditional)"
            ". Write noise_dim (or noise_shape) to fit it."
        ).replace("'n'", "n")

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        self.check_noise(z)
        if is_stochman(self.module):
            return stochman_jacobian(self.module, z, self.output_dim, len(self.noise_shape))
        return super().jacobian(z)


def generator_class(name: str) -> type[Generator] | None:
    """
    Finds a class of generators by its name.

    :param str name: of a class of generators that tells its :meth:`Generator.config`.
    :returns: the class, or None if there is none of that name.
    """
    return _CLASSES.get(name)


def as_generator(generator: Any, output_dim: int, noise_dim: int | None = None) -> Generator:
    """
    A :class:`Generator` of ``output_dim`` outputs from what a user may pass.

    :param generator: a :class:`Generator`; any other ``nn.Module`` from ``(n, noise_dim)`` to
        ``(n, output_dim)``; or a callable (a class, say) that makes one of these from
        ``output_dim``.
    :param int output_dim: number of latents to generate.
    :param int noise_dim: noise dimensions, needed for a plain module only; by default those of
        its first linear layer.
    :raises ArgumentError: if it is none of these, or the noise dimension cannot be found.
    :raises ShapeError: if the number of outputs is another.
    """
    if not isinstance(generator, nn.Module) and callable(generator):
        generator = generator(output_dim)
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


def _first_width(module: nn.Module) -> int | None:
    """Inputs of its first linear layer, if it has one."""
    layers = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return next((layer.in_features for layer in layers), None)


def _first_in_features(module: nn.Module) -> int:
    width = _first_width(module)
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
    wrapped = ModuleGenerator(module, (noise_dim,), output_dim)
    example = next(iter(module.parameters()), torch.zeros(()))
    with torch.no_grad(), evaluated(module):
        try:
            wrapped(torch.zeros(2, noise_dim, dtype=example.dtype, device=example.device))
        except (RuntimeError, IndexError) as error:
            raise ShapeError(
                f"the generator {type(module).__name__} fails on noises of shape (2, {noise_dim}) "
                f"(with the context at the end, if the guide is conditional): {error} It must take "
                "(n, noise_dim): write another noise_dim, or wrap it as ModuleGenerator(module, "
                "noise_shape, output_dim)."
            ) from error
    return wrapped
