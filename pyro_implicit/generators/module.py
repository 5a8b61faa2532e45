"""The adapter that makes a generator of any module."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pyro_implicit._checks import check_instance, shown
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators.base import Generator

__all__ = ["ModuleGenerator", "first_width"]


class ModuleGenerator(Generator):
    """
    Any ``nn.Module`` as a generator.

    Jacobians come from ``torch.func``, with what torch differentiates wrongly the second time
    written out (``pyro_implicit.ops.twice_differentiable``), and column by column where it
    cannot map a layer (recurrent ones). Before the first step the gradient of the Jacobian by one
    mode of torch is compared with that by another, at one noise, and a mode that is wrong is not
    gone. Objectives that need a Jacobian refuse operations without a second derivative, and parts
    that derivatives do not see (``torch.no_grad``, straight-through estimators). Layers that push
    their own Jacobians forward are for :class:`~pyro_implicit.generators.NnjGenerator`.

    :param torch.nn.Module module: maps ``(n, *noise_shape)`` to ``(n, output_dim)``.
    :param noise_shape: shape of one noise.
    :param int output_dim: number of outputs.
    :raises ArgumentError: for anything else.
    """

    def __init__(self, module: nn.Module, noise_shape: Sequence[int], output_dim: int) -> None:
        super().__init__(noise_shape, output_dim)
        self.module = check_instance("module", module, nn.Module, "an nn.Module, built")

    def forward(self, z: Tensor) -> Tensor:
        """
        See :meth:`Generator.forward`.

        :raises ArgumentError: if the module returns anything but a tensor of real numbers.
        :raises ShapeError: if the module takes noise of another shape, or returns another shape
            than ``(n, output_dim)``.
        """
        batch = z.shape[: z.dim() - len(self.noise_shape)]
        try:
            out = self.module(z.reshape(-1, *self.noise_shape))
        except RuntimeError as error:
            width = first_width(self.module)
            if width in (None, self.noise_shape[-1]):
                raise
            raise ShapeError(self._takes(width)) from error
        if not isinstance(out, Tensor) or not out.is_floating_point():
            raise ArgumentError(
                f"the generator {type(self.module).__name__} returned {shown(out)}; expected one "
                f"tensor of real numbers, shape ({batch.numel()}, {self.output_dim}): wrap it in a "
                "module whose forward returns that alone."
            )
        if out.shape != (batch.numel(), self.output_dim):
            raise ShapeError(
                f"the generator {type(self.module).__name__} returned shape {tuple(out.shape)} for "
                f"{batch.numel()} noises of shape {tuple(self.noise_shape)}; expected "
                f"{(batch.numel(), self.output_dim)}: one row per noise, one column per latent."
            )
        shaped: Tensor = out.reshape(*batch, self.output_dim)
        return shaped

    def _takes(self, width: int | None) -> str:
        """The message for a module that takes ``width`` numbers for each noise."""
        takes = "another shape" if width is None else f"(n, {width}), its first linear layer says"
        return (
            f"the module {type(self.module).__name__} takes {takes}; it was given noises of shape "
            f"{('n', *self.noise_shape)} (with the context at the end, if the guide is conditional)"
            ". Write noise_dim (or noise_shape) to fit it."
        ).replace("'n'", "n")


def first_width(module: nn.Module) -> int | None:
    """The number of inputs of the first linear layer of a module, if it has one."""
    layers = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    return next((layer.in_features for layer in layers), None)
