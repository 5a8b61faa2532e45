"""What a generator promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_counts, check_instance, check_tensor
from pyro_implicit.exceptions import ArgumentError, DensityError, ShapeError
from pyro_implicit.generators.jacobian_route import right_route
from pyro_implicit.ops.det_sign import det_sign
from pyro_implicit.ops.jacobian import function_jacobian
from pyro_implicit.ops.linearisation import FunctionLinearisation, Linearisation
from pyro_implicit.ops.logdet import half_log_det

__all__ = ["Generator", "generator_class"]

_CLASSES_BY_NAME: dict[str, type[Generator]] = {}


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
    #: whether ``g`` is certain to be a bijection of the noise's space on that of the outputs, for
    #: every value of its parameters; :meth:`inverse` then works
    is_bijective: bool = False
    #: whether the determinant (at any one context, for a generator that has one) is certain to have
    #: one sign at all noises; nobody watches for folds then
    never_folds: bool = False
    #: whether :meth:`linearise` costs about a draw and tells the determinant with it
    draws_with_log_det: bool = False
    #: whether :meth:`half_log_det` without output noise is cheap at any size, by structure
    has_structured_log_det: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config" in vars(cls):
            _CLASSES_BY_NAME[cls.__name__] = cls

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

        :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
        :raises ArgumentError: if ``z`` is no tensor of real numbers.
        :raises ShapeError: if ``z`` does not end in ``noise_shape``.
        """
        shape = self.noise_shape
        if not isinstance(z, Tensor):
            check_instance("the noise", z, Tensor, "a tensor (..., *noise_shape)")
        if not z.is_floating_point():
            raise ArgumentError(f"the noise is of type {z.dtype}; expected real numbers.")
        if z.dim() < len(shape) or z.shape[z.dim() - len(shape) :] != shape:
            raise ShapeError(
                f"{type(self).__name__} takes noise of shape (..., {', '.join(map(str, shape))}); "
                f"found {tuple(z.shape)}."
            )

    def check_outputs(self, x: Tensor) -> None:
        """
        Checks that a tensor can be what the generator maps to.

        :param torch.Tensor x: outputs, shape ``(..., output_dim)``.
        :raises ArgumentError: if ``x`` is no tensor.
        :raises ShapeError: if ``x`` does not end in ``output_dim`` entries.
        """
        check_tensor("x", x, "outputs (..., output_dim)")
        if x.shape[-1:] != (self.output_dim,):
            raise ShapeError(
                f"outputs of shape {tuple(x.shape)}; expected (..., {self.output_dim}), what "
                f"{type(self).__name__} maps to."
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
        :raises LayerError: if torch cannot differentiate it, or does so wrongly.
        """
        route = right_route(self, z)
        if route == "products":
            return self.linearise(z).jacobian()
        try:
            return function_jacobian(self, z, self.output_dim, len(self.noise_shape), route)
        except (NotImplementedError, RuntimeError, ValueError):  # of a layer that cannot be mapped
            return self.linearise(z).jacobian()

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
        :param scale: standard deviation of the output noise, a number, or a positive tensor of
            shape ``()`` or ``(output_dim,)``; see :func:`pyro_implicit.ops.logdet.half_log_det`.
        :returns: shape ``(...)``.
        """
        with torch.autocast(z.device.type, enabled=False):
            return half_log_det(self.jacobian(z), scale)

    def det_sign(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        r"""
        The sign of :math:`\det J` at each noise, up to one sign in common, where it is certain.

        Where both occur the map folds.

        :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
        :param scale: standard deviation of the output noise, a number or shape ``()`` or
            ``(output_dim,)``; see :func:`pyro_implicit.ops.det_sign.det_sign`.
        :returns: 1, -1, or 0 where rounding or output noise may have turned it, and without as
            many noise entries as outputs; shape ``(...)``.
        """
        return det_sign(self.jacobian(z), scale)

    def inverse(self, x: Tensor) -> Tensor:
        """
        Find the noise that leads to given outputs, where there is certain to be exactly one.

        Gradients go through it, with respect to the outputs and to the parameters. These
        are first derivatives: torch refuses second ones with respect to the outputs, and those with
        respect to the parameters are wrong.

        :param torch.Tensor x: outputs, shape ``(..., output_dim)``.
        :returns: noise, shape ``(..., *noise_shape)``.
        :raises DensityError: unless :attr:`is_bijective`.
        """
        raise DensityError(
            f"{type(self).__name__} is not certain to be invertible: several noises may lead to "
            "one draw, some values to none. Use a generator that is, such as BijectiveGenerator, "
            "or pyro_implicit.diagnostics.log_density(guide, draws), which searches for all noises."
        )

    def config(self) -> dict[str, Any] | None:
        """
        The generator's constructor arguments as plain values, for saving.

        With the class's name as ``"type"``, they let a guide that was saved make the generator
        anew.

        :returns: plain values by name; None if they cannot be told.
        """
        return None


def generator_class(name: str) -> type[Generator] | None:
    """
    Finds a class of generators by its name.

    :param str name: of a class of generators that tells its :meth:`Generator.config`.
    :returns: the class, or None if there is none of that name.
    """
    return _CLASSES_BY_NAME.get(name)
