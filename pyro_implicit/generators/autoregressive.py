"""A generator that cannot fold: increasing functions of each noise, given the ones before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.exceptions import DensityError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.linear_maps import INVERTIBLE, default_kind, linear_maps
from pyro_implicit.ops.inverse import Inversion, check_reached, first_order, result_dtype
from pyro_implicit.ops.linearisation import FunctionLinearisation, Linearisation
from pyro_implicit.ops.logdet import is_zero, upcast
from pyro_implicit.ops.monotone import Steps

__all__ = [
    "AutoregressiveBlock",
    "AutoregressiveGenerator",
    "KnownDeterminant",
    "default_width",
    "through",
    "through_with_log_det",
]

#: the logarithm of a scale stays within plus and minus this
_MOST_LOG_SCALE = 4.0
#: the default width: hidden units for each output, within these
_UNITS_PER_OUTPUT, _LEAST, _MOST = 4, 40, 128


class AutoregressiveBlock(nn.Module):
    r"""
    A block in which each entry is an increasing function of itself.

    It is :math:`y_i = m_i + e^{s_i} f_i(x_i)`, where all numbers of entry ``i`` are functions of
    the entries before it, by one masked network (MADE, Germain et al., ICML 2015).

    :param int size: ``m``.
    :param int hidden_dim: width of the two hidden layers.
    :param int num_steps: steps of each increasing function.
    :param int context_dim: numbers beside the entries that every entry may depend on.
    """

    def __init__(
        self, size: int, hidden_dim: int, num_steps: int, context_dim: int | None = None
    ) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.num_outputs = 2 + 3 * num_steps
        position = torch.arange(1, size + 1)
        if context_dim is None:
            unit = _degrees(hidden_dim, max(size - 1, 1))
        else:  # some units see no entry, only the context
            unit = _degrees(hidden_dim, size) - 1
        self.mask_in: Tensor
        self.mask_hidden: Tensor
        self.mask_out: Tensor
        self.register_buffer("mask_in", unit[:, None] >= position, persistent=False)
        self.register_buffer("mask_hidden", unit[:, None] >= unit, persistent=False)
        self.register_buffer("mask_out", position[:, None] > unit, persistent=False)
        self.weight_in = nn.Parameter(_first_weights(self.mask_in))
        self.bias_in = nn.Parameter(torch.randn(hidden_dim))
        self.weight_hidden = nn.Parameter(_hidden_weights(self.mask_hidden))
        self.bias_hidden = nn.Parameter(torch.zeros(hidden_dim))
        spread = 0.01 / math.sqrt(hidden_dim)
        self.weight_out = nn.Parameter(spread * torch.randn(self.num_outputs, size, hidden_dim))
        bias = torch.zeros(self.num_outputs, size)
        bias[2 + num_steps : 2 + 2 * num_steps] = torch.randn(num_steps, size)
        self.bias_out = nn.Parameter(bias)
        self.weight_context: nn.Parameter | None = None
        if context_dim is not None:
            spread = 1 / math.sqrt(context_dim)
            self.weight_context = nn.Parameter(spread * torch.randn(hidden_dim, context_dim))

    def parts(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Steps]:
        """
        Run the masked network.

        :param torch.Tensor x: shape ``(..., m)``.
        :param torch.Tensor context: shape ``(..., k)``, of a block that takes one.
        :returns: ``m`` and ``s``, shape ``(..., m)``, and the increasing functions.
        """
        dtype = x.dtype
        weight = self.weight_in.to(dtype) * self.mask_in
        hidden = F.linear(x, weight, self.bias_in.to(dtype))
        if context is not None and self.weight_context is not None:
            hidden = hidden + F.linear(context, self.weight_context.to(dtype))
        hidden = F.silu(hidden)
        weight = self.weight_hidden.to(dtype) * self.mask_hidden
        hidden = F.silu(F.linear(hidden, weight, self.bias_hidden.to(dtype)))
        weight = (self.weight_out.to(dtype) * self.mask_out).flatten(0, 1)
        out = F.linear(hidden, weight, self.bias_out.to(dtype).flatten())
        out = out.unflatten(-1, (self.num_outputs, -1)).movedim(-2, 0)
        shift, log_scale = out[0], _MOST_LOG_SCALE * torch.tanh(out[1] / _MOST_LOG_SCALE)
        height, centre, rate = out[2:].chunk(3)
        return shift, log_scale, Steps(F.softplus(height - 4), centre, 2 * F.softplus(rate) + 1e-3)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """
        Evaluate the block.

        :param torch.Tensor x: shape ``(..., m)``.
        :param torch.Tensor context: see :meth:`parts`.
        :returns: ``y``, of the same shape.
        """
        shift, log_scale, steps = self.parts(x, context)
        return shift + log_scale.exp() * steps.value(x)

    def with_log_det(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """
        Evaluate the block and its determinant in one pass.

        :param torch.Tensor x: shape ``(..., m)``.
        :param torch.Tensor context: see :meth:`parts`.
        :returns: ``y``, and the log-determinant of its triangular Jacobian, shape ``(...)``.
        """
        shift, log_scale, steps = self.parts(x, context)
        value, slope = steps.value_and_slope(x)
        return shift + log_scale.exp() * value, (log_scale + slope.log()).sum(-1)

    @torch.no_grad()
    def inverse(self, y: Tensor) -> tuple[Tensor, int]:
        """
        Find the argument of a value.

        All entries at once are found from the last guess of those before them, so that entry ``i``
        is right after ``i`` rounds at the latest.

        :param torch.Tensor y: shape ``(..., m)``.
        :returns: ``x``, of the same shape, and the number of rounds.
        """
        x, count = y, 0
        while count <= y.shape[-1]:
            count += 1
            shift, log_scale, steps = self.parts(x)
            then = steps.inverse((y - shift) * torch.exp(-log_scale))
            close = torch.allclose(then, x, rtol=1e-13, atol=1e-13)
            x = then
            if close:
                break
        return x, count


def _first_weights(mask: Tensor) -> Tensor:
    """
    Make the first layer's weights: each unit begins as a function of nearly one entry alone.

    It is the last that the unit may see. Most latents depend on few others, and a feature of one
    entry is found sooner than one of a sum over all.
    """
    num_units = len(mask)
    seen = mask.sum(1).clamp(min=1)  # a unit that sees none has its weights masked
    weights = 0.3 * torch.randn(mask.shape) / seen.sqrt()[:, None]
    signs = 2.0 * torch.randint(2, (num_units,)) - 1
    weights[torch.arange(num_units), seen - 1] += signs * (0.7 + 0.8 * torch.rand(num_units))
    return weights


def _hidden_weights(mask: Tensor) -> Tensor:
    """Make the second layer's weights: the identity, and as much of all that a unit may see."""
    size = len(mask)
    return torch.eye(size) + 0.5 * torch.randn(size, size) / mask.sum(1).sqrt()[:, None]


def _degrees(num_units: int, most: int) -> Tensor:
    """Last entry that each hidden unit sees, spread over all that an entry may depend on."""
    if num_units >= most:
        return torch.arange(num_units) % most + 1
    return torch.linspace(1, most, num_units).round().long()


def default_width(output_dim: int) -> int:
    """
    Tell the width that the networks of a generator have by default.

    :param int output_dim: its number of outputs.
    :returns: hidden units of each layer.
    """
    return min(max(_LEAST, _UNITS_PER_OUTPUT * output_dim), _MOST)


class AutoregressiveGenerator(Generator):
    r"""
    A generator that cannot fold, made of increasing functions of each entry.

    In each of ``K`` blocks an entry is an increasing function of itself, shaped by the entries
    before it: an inverse autoregressive flow (Kingma et al., NeurIPS 2016) with the identity plus
    steps in place of the affine map, so that a block can pull mass apart. Each is followed by a
    linear map of positive determinant. The order of the entries is reversed between two blocks,
    that of the last is the order of the outputs: put what others depend on first, as a model does.

    The networks begin as functions of nearly one entry for each unit, and with four units for each
    entry. Both shorten training: on ten bent pairs (20 outputs, 1000 steps) the divergence was
    1.74 nats with 40 units and 0.61 with 80, and 1.36 where units began as sums over all entries.
    Three blocks of two steps: 0.39. See ``docs/results/generators.md``.

    As for :class:`~pyro_implicit.generators.BijectiveGenerator`, noise and draw determine each
    other: :class:`~pyro_implicit.LinearisedELBO` is a true lower bound on the evidence, and the
    density can be evaluated. The determinant costs nothing beside the draw. The inverse takes up to
    ``m`` rounds, in practice a few.

    :param int output_dim: outputs and noise dimensions ``m``.
    :param int hidden_dim: width of the two hidden layers of each block; by default four units for
        each output, at least 40 and at most 128.
    :param int num_blocks: ``K``.
    :param int num_steps: steps of each increasing function; 0 leaves it affine.
    :param str mixing: the linear maps: ``"diagonal"``, ``"triangular"`` (a full matrix by its
        triangular factors), or ``"auto"``: the latter up to 256 outputs.
    :param float init_scale: standard deviation of each output at initialization (positive),
        roughly.
    :raises ArgumentError: for values outside of these.
    """

    full_rank = True
    draws_with_log_det = True
    has_structured_log_det = True

    def __init__(
        self,
        output_dim: int,
        hidden_dim: int | None = None,
        *,
        num_blocks: int = 3,
        num_steps: int = 2,
        mixing: str = "auto",
        init_scale: float = 1.0,
    ) -> None:
        output_dim = check_count("output_dim", output_dim)
        super().__init__((output_dim,), output_dim)
        init_scale = check_number("init_scale", init_scale, above=0)
        if hidden_dim is None:
            hidden_dim = default_width(output_dim)
        hidden_dim = self.hidden_dim = check_count("hidden_dim", hidden_dim)
        self.num_blocks = check_count("num_blocks", num_blocks)
        self.num_steps = check_count("num_steps", num_steps, 0)
        self.mixing = check_choice("mixing", mixing, ("auto", *INVERTIBLE))
        kind = default_kind(output_dim, invertible=True) if mixing == "auto" else mixing
        self.shift = nn.Parameter(torch.zeros(output_dim))
        self.blocks = nn.ModuleList(
            AutoregressiveBlock(output_dim, hidden_dim, num_steps) for _ in range(num_blocks)
        )
        self.maps = linear_maps(kind, output_dim, num_blocks, init_scale)

    @property
    def is_bijective(self) -> bool:  # type: ignore[override]
        """
        Whether all parameters are finite: then every factor of the determinant is positive.

        Of a subclass with a map of its own nothing is certain.
        """
        own = type(self).forward is AutoregressiveGenerator.forward
        return own and all(bool(parameter.isfinite().all()) for parameter in self.parameters())

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        with torch.autocast(z.device.type, enabled=False):  # in the precision of the determinant
            x = z.to(torch.promote_types(z.dtype, torch.float32))
            x = through(self.blocks, self.maps, x)
            return (x + self.shift.to(x.dtype)).to(z.dtype)

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.half_log_det`; with output noise the whole Jacobian is formed."""
        self.check_noise(z)
        if not is_zero(scale):
            return super().half_log_det(z, scale)
        return self._with_log_det(z)[1]

    def _with_log_det(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Draws, and the log-determinants, in one pass."""
        with torch.autocast(z.device.type, enabled=False):
            x = z.to(torch.promote_types(z.dtype, torch.float32))
            x, total = through_with_log_det(self.blocks, self.maps, x)
            return (x + self.shift.to(x.dtype)).to(z.dtype), total.to(z.dtype)

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; the determinant comes with the value."""
        self.check_noise(z)
        return KnownDeterminant(partial(FunctionLinearisation, self, z), *self._with_log_det(z))

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`Generator.inverse`."""
        return self.invert(x).noise

    def invert(self, x: Tensor) -> Inversion:
        """
        Find the inverse in float64, and tell its rounds.

        :param torch.Tensor x: outputs, shape ``(..., output_dim)``.
        :returns: the noise, the largest number of rounds of a block and the largest error of what
            the noise leads to.
        :raises DensityError: if a parameter is not finite.
        :raises NonFiniteError: if the noise that was found does not lead there.
        :raises ShapeError: for another number of outputs.
        """
        self.check_outputs(x)
        if not self.is_bijective:
            raise DensityError("a parameter of the generator is not finite: there is no inverse.")
        goal, wants_gradient = upcast(x), _needs_gradient(self, x)
        z, most = goal.detach() - self.shift.detach().to(goal.dtype), 0
        with torch.no_grad():
            for number in reversed(range(self.num_blocks)):
                block, mix = self.blocks[number], self.maps[number]
                z, rounds = block.inverse(mix.inverse(z))  # type: ignore[operator]
                z, most = z.flip(-1) if number else z, max(most, rounds)
            jacobian = self.jacobian(z) if wants_gradient else None
        rest = self(z) - goal
        worst = float(rest.detach().abs().max()) if rest.numel() else 0.0
        check_reached(rest, goal)
        if jacobian is not None:  # the implicit function theorem, as one step of Newton's method
            z = first_order(z - torch.linalg.solve(jacobian, rest[..., None])[..., 0])
        return Inversion(z.to(result_dtype(x)), most, worst)

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {
            "type": type(self).__name__,
            "output_dim": self.output_dim,
            "hidden_dim": self.hidden_dim,
            "num_blocks": self.num_blocks,
            "num_steps": self.num_steps,
            "mixing": self.mixing,
        }


def through(
    blocks: nn.ModuleList, maps: nn.ModuleList, x: Tensor, context: Tensor | None = None
) -> Tensor:
    """
    Run blocks and linear maps in turns, the order of the entries reversed between two blocks.

    :param blocks: of :class:`AutoregressiveBlock`.
    :param maps: as many.
    :param torch.Tensor x: shape ``(..., m)``.
    :param torch.Tensor context: see :meth:`AutoregressiveBlock.parts`.
    :returns: shape ``(..., m)``.
    """
    for number, (block, mix) in enumerate(zip(blocks, maps, strict=True)):
        x = mix(block(x.flip(-1) if number else x, context))
    return x


def through_with_log_det(
    blocks: nn.ModuleList, maps: nn.ModuleList, x: Tensor, context: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """
    Run blocks and linear maps in turns, and tell the log-determinant of it all.

    :param blocks: of :class:`AutoregressiveBlock`.
    :param maps: as many.
    :param torch.Tensor x: shape ``(..., m)``.
    :param torch.Tensor context: see :meth:`AutoregressiveBlock.parts`.
    :returns: shape ``(..., m)``, and ``(...)``.
    """
    total = x.new_zeros(())
    for number, (block, mix) in enumerate(zip(blocks, maps, strict=True)):
        x, log_det = block.with_log_det(x.flip(-1) if number else x, context)  # type: ignore[operator]
        total = total + log_det + mix.log_abs_det().to(x)  # type: ignore[operator]
        x = mix(x)
    return x, total


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


def _needs_gradient(module: nn.Module, x: Tensor) -> bool:
    learned = any(parameter.requires_grad for parameter in module.parameters())
    return torch.is_grad_enabled() and (x.requires_grad or learned)
