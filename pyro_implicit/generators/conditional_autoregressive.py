"""A generator for each row that cannot fold: increasing functions, shaped by its context."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.generators.autoregressive import (
    AutoregressiveBlock,
    KnownDeterminant,
    default_width,
    through,
    through_with_log_det,
)
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.linear_maps import INVERTIBLE, default_kind, linear_maps
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import is_zero

__all__ = ["ConditionalAutoregressiveGenerator"]


class ConditionalAutoregressiveGenerator(Generator):
    r"""
    An :class:`~pyro_implicit.generators.AutoregressiveGenerator` for each row of the data.

    Its inputs are ``m`` noises and a context, side by side. At a given context it is a map of the
    noises that cannot fold, and whose determinant comes with the draw: the linearised entropy of
    each row is exact. Two layers read the context; what they find shapes every increasing function
    of every block, beside the entries before it: a conditional inverse autoregressive flow, as the
    encoder of Kingma et al., NeurIPS 2016, with the identity plus steps in place of the affine map.

    :param int output_dim: outputs and noises ``m``.
    :param int context_dim: numbers of a context ``k``.
    :param int hidden_dim: width of all hidden layers; by default four units for each output, at
        least 40 and at most 128.
    :param int num_blocks: number of blocks.
    :param int num_steps: steps of each increasing function; 0 leaves it affine.
    :param str mixing: see :class:`~pyro_implicit.generators.AutoregressiveGenerator`.
    :param float init_scale: standard deviation of each output at initialization (positive),
        roughly.
    :raises ArgumentError: for values outside of these.
    """

    full_rank = True
    never_folds = True
    context_loc: Tensor
    context_scale: Tensor

    def __init__(
        self,
        output_dim: int,
        context_dim: int,
        hidden_dim: int | None = None,
        *,
        num_blocks: int = 3,
        num_steps: int = 2,
        mixing: str = "auto",
        init_scale: float = 1.0,
    ) -> None:
        m = check_count("output_dim", output_dim)
        context_dim = check_count("context_dim", context_dim)
        super().__init__((m + context_dim,), m)
        self.context_dim = context_dim
        init_scale = check_number("init_scale", init_scale, above=0)
        width = default_width(m) if hidden_dim is None else check_count("hidden_dim", hidden_dim)
        self.hidden_dim, self.num_blocks = width, check_count("num_blocks", num_blocks)
        self.num_steps = check_count("num_steps", num_steps, 0)
        self.mixing = check_choice("mixing", mixing, ("auto", *INVERTIBLE))
        kind = default_kind(m, invertible=True) if mixing == "auto" else mixing
        layers = [nn.Linear(context_dim, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()]
        self.reader = nn.Sequential(*layers)
        self.register_buffer("context_loc", torch.zeros(context_dim))
        self.register_buffer("context_scale", torch.ones(context_dim))
        self.shift = nn.Parameter(torch.zeros(m))
        self.blocks = nn.ModuleList(
            AutoregressiveBlock(m, width, num_steps, width) for _ in range(num_blocks)
        )
        self.maps = linear_maps(kind, m, num_blocks, init_scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """
        Maps noises and contexts to draws.

        :param torch.Tensor inputs: noise, then context, shape ``(..., m + k)``.
        :returns: draws, shape ``(..., m)``.
        """
        z, context = inputs.split([self.output_dim, self.context_dim], -1)
        features = self._read(context)
        with torch.autocast(z.device.type, enabled=False):  # in the precision of the determinant
            x = z.to(features.dtype)
            x = through(self.blocks, self.maps, x, features)
            return (x + self.shift.to(x.dtype)).to(z.dtype)

    def _read(self, context: Tensor) -> Tensor:
        """What shapes the map, shape ``(..., hidden_dim)``, in float32 or better."""
        with torch.autocast(context.device.type, enabled=False):
            x = context.to(torch.promote_types(context.dtype, torch.float32))
            x = (x - self.context_loc.to(x.dtype)) / self.context_scale.to(x.dtype)
            if x.dtype == self.shift.dtype:
                return self.reader(x)
            weights = [parameter.to(x.dtype) for parameter in self.reader.parameters()]
            for weight, bias in (weights[:2], weights[2:]):
                x = F.silu(F.linear(x, weight, bias))
            return x

    def _draw_with_log_det(self, z: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Draws, and their log-determinants ``(...)``."""
        with torch.autocast(z.device.type, enabled=False):
            x = z.to(torch.promote_types(z.dtype, torch.float32))
            x, total = through_with_log_det(self.blocks, self.maps, x, features.to(x.dtype))
            return (x + self.shift.to(x.dtype)).to(z.dtype), total.to(z.dtype)

    @torch.no_grad()
    def standardise(self, context: Tensor) -> None:
        """
        Makes contexts like these the unit that contexts are read in, entry by entry.

        :param torch.Tensor context: shape ``(rows, k)``. An entry that does not vary keeps its
            unit.
        :raises ShapeError: for another ``k``.
        """
        self._check_context(context)
        rows = context.reshape(-1, self.context_dim).to(self.context_loc)
        mean, spread = rows.mean(0), rows.std(0, correction=0)
        varies = spread.isfinite() & (spread > 0)
        self.context_loc.copy_(torch.where(mean.isfinite(), mean, 0.0))
        self.context_scale.copy_(torch.where(varies, spread, 1.0))

    def _check_context(self, context: Tensor) -> None:
        if context.dim() == 0 or context.shape[-1] != self.context_dim:
            raise ShapeError(
                f"a context of shape {tuple(context.shape)}; expected (..., {self.context_dim})."
            )

    def at_context(self, context: Tensor) -> Conditioned:
        """
        The generator of noise alone.

        :param torch.Tensor context: shape ``(*batch, k)``.
        :returns: the generator with its last inputs held there.
        :raises ShapeError: for another ``k``.
        """
        self._check_context(context)
        return _AtContext(self, context)

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {
            "type": type(self).__name__,
            "output_dim": self.output_dim,
            "context_dim": self.context_dim,
            "hidden_dim": self.hidden_dim,
            "num_blocks": self.num_blocks,
            "num_steps": self.num_steps,
            "mixing": self.mixing,
        }


class _AtContext(Conditioned):
    """The map of each row; its determinant by structure."""

    inner: ConditionalAutoregressiveGenerator
    never_folds = True
    draws_with_log_det = True
    has_structured_log_det = True

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; the determinant comes with the value."""
        products = partial(super().linearise, z)
        return KnownDeterminant(products, *self.inner._draw_with_log_det(*self._parts(z)))

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.half_log_det`; with output noise the whole Jacobian is formed."""
        if not is_zero(scale):
            return super().half_log_det(z, scale)
        return self.inner._draw_with_log_det(*self._parts(z))[1]

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Noise, and what was read of the context, once for all draws of a row."""
        self.check_noise(z)
        batch = torch.broadcast_shapes(z.shape[:-1], self.context.shape[:-1])
        return z.expand(*batch, -1), self.inner._read(self.context.to(z.dtype))
