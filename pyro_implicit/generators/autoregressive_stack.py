"""What generators of autoregressive blocks share: the blocks, the maps between them, the map."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.generators.autoregressive_block import AutoregressiveBlock
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.linear_maps import INVERTIBLE, default_kind, linear_maps
from pyro_implicit.ops.inverse import Inversion, check_reached, first_order, result_dtype
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import upcast

__all__ = ["AutoregressiveStack", "KnownDeterminant", "inverted", "width_of"]

#: the default width: hidden units for each output, within these
_UNITS_PER_OUTPUT, _LEAST, _MOST = 4, 40, 128


def width_of(output_dim: int, hidden_dim: int | None) -> int:
    """
    Tell the width of the networks of a generator.

    :param int output_dim: its number of outputs.
    :param int hidden_dim: the width that was asked for, None for the default.
    :returns: hidden units of each layer.
    :raises ArgumentError: for values that are no counts.
    """
    if hidden_dim is not None:
        return check_count("hidden_dim", hidden_dim)
    return min(max(_LEAST, _UNITS_PER_OUTPUT * output_dim), _MOST)


class AutoregressiveStack(Generator):
    """
    Autoregressive blocks and linear maps in turns, and a shift.

    The order of the entries is reversed between two blocks.

    :param int noise_dim: number of inputs.
    :param int output_dim: outputs and noises ``m``.
    :param int hidden_dim: width of the hidden layers of each block.
    :param int num_blocks: number of blocks.
    :param int num_steps: steps of each increasing function.
    :param str mixing: the linear maps.
    :param float init_scale: standard deviation of each output at initialisation, roughly.
    :param int context_dim: numbers beside the entries that every entry may depend on; None for
        none.
    :raises ArgumentError: for values outside of these.
    """

    full_rank = True

    def __init__(
        self,
        noise_dim: int,
        output_dim: int,
        hidden_dim: int,
        num_blocks: int,
        num_steps: int,
        mixing: str,
        init_scale: float,
        context_dim: int | None = None,
    ) -> None:
        super().__init__((noise_dim,), output_dim)
        init_scale = check_number("init_scale", init_scale, above=0)
        self.hidden_dim, self.num_blocks = hidden_dim, check_count("num_blocks", num_blocks)
        self.num_steps = check_count("num_steps", num_steps, 0)
        self.mixing = check_choice("mixing", mixing, ("auto", *INVERTIBLE))
        kind = default_kind(output_dim, invertible=True) if mixing == "auto" else mixing
        self.shift = nn.Parameter(torch.zeros(output_dim))
        self.blocks = nn.ModuleList(
            AutoregressiveBlock(output_dim, hidden_dim, num_steps, context_dim)
            for _ in range(num_blocks)
        )
        self.maps = linear_maps(kind, output_dim, num_blocks, init_scale)

    def _draw(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Draws of noises, both ``(..., m)``."""
        with torch.autocast(z.device.type, enabled=False):  # in the precision of the determinant
            x = z.to(torch.promote_types(z.dtype, torch.float32))
            for number, (block, mix) in enumerate(zip(self.blocks, self.maps, strict=True)):
                x = mix(block(x.flip(-1) if number else x, context))
            return (x + self.shift.to(x.dtype)).to(z.dtype)

    def _draw_with_log_det(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draws, and the log-determinants ``(...)``, in one pass."""
        with torch.autocast(z.device.type, enabled=False):
            x = z.to(torch.promote_types(z.dtype, torch.float32))
            total = x.new_zeros(())
            for number, (block, mix) in enumerate(zip(self.blocks, self.maps, strict=True)):
                x, log_det = block.with_log_det(x.flip(-1) if number else x, context)  # type: ignore[operator]
                total = total + log_det + mix.log_abs_det().to(x)  # type: ignore[operator]
                x = mix(x)
            return (x + self.shift.to(x.dtype)).to(z.dtype), total.to(z.dtype)

    def _undo(self, w: Tensor, context: Tensor | None = None) -> tuple[Tensor, int]:
        """The noises of draws ``(..., m)``, and the largest number of rounds of a block."""
        z, most = w - self.shift.detach().to(w.dtype), 0
        for number in reversed(range(self.num_blocks)):
            block, mix = self.blocks[number], self.maps[number]
            z, rounds = block.inverse(mix.inverse(z), context)  # type: ignore[operator]
            z, most = z.flip(-1) if number else z, max(most, rounds)
        return z, most

    def _config(self) -> dict[str, Any]:
        """What :meth:`Generator.config` of all of them tells."""
        return {
            "type": type(self).__name__,
            "output_dim": self.output_dim,
            "hidden_dim": self.hidden_dim,
            "num_blocks": self.num_blocks,
            "num_steps": self.num_steps,
            "mixing": self.mixing,
        }


def inverted(
    generator: Generator, x: Tensor, undo: Callable[[Tensor], tuple[Tensor, int]]
) -> Inversion:
    """
    Find the noises that lead to values, in float64, with a first derivative.

    :param Generator generator: a bijection.
    :param torch.Tensor x: outputs, shape ``(..., output_dim)``.
    :param undo: from wide outputs to noises of that shape and its rounds.
    :returns: the noise, its rounds and the largest error of what it leads to.
    :raises NonFiniteError: if the noise that was found does not lead there.
    """
    goal = upcast(x)
    with torch.no_grad():
        z, most = undo(goal.detach())
    rest = generator(z) - goal
    worst = float(rest.detach().abs().max()) if rest.numel() else 0.0
    check_reached(rest, goal)
    if rest.requires_grad:  # the implicit function theorem, as one step of Newton's method
        with torch.no_grad():
            jacobian = generator.jacobian(z)
        z = first_order(z - torch.linalg.solve(jacobian, rest[..., None])[..., 0])
    return Inversion(z.to(result_dtype(x)), most, worst)


class KnownDeterminant(Linearisation):
    """
    A value with its determinant; products only once they are asked for.

    :param products: makes the linearisation that has them.
    :param torch.Tensor value: the draws, shape ``(..., m)``.
    :param torch.Tensor log_abs_det: shape ``(...)``.
    """

    def __init__(
        self, products: Callable[[], Linearisation], value: Tensor, log_abs_det: Tensor
    ) -> None:
        super().__init__(value, value.shape[-1])
        self._make, self.log_abs_det = products, log_abs_det

    @cached_property
    def _products(self) -> Linearisation:
        return self._make()

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        return self._products.jvp(v)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        return self._products.vjp(u)
