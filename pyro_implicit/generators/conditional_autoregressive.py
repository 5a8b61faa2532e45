"""A generator for each row that cannot fold: increasing functions, shaped by its context."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_count
from pyro_implicit.exceptions import DensityError, ShapeError
from pyro_implicit.generators.autoregressive_stack import (
    AutoregressiveStack,
    KnownDeterminant,
    inverted,
    width_of,
)
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import is_zero

__all__ = ["ConditionalAutoregressiveGenerator"]

_MAX_DEFAULT_READER_DIM = 256


class ConditionalAutoregressiveGenerator(AutoregressiveStack):
    r"""
    An :class:`~pyro_implicit.generators.AutoregressiveGenerator` for each row of the data.

    Its inputs are ``m`` noises and a context, side by side. At a given context it is a map of the
    noises that cannot fold, and whose determinant comes with the draw: the linearised entropy of
    each row is exact. Two layers read the context, once for all draws of a row; what they find
    shapes every increasing function of every block, by a linear map and through the network of the
    entries before it: a conditional inverse autoregressive flow, as the encoder of Kingma et al.,
    NeurIPS 2016, with the identity plus steps in place of the affine map. Without steps, and
    without that network, a block is the encoder of a Gaussian.

    :param int output_dim: outputs and noises ``m``.
    :param int context_dim: numbers of a context ``k``.
    :param int hidden_dim: width of the hidden layers of each block; by default four units for each
        output, at least 40 and at most 128.
    :param int reader_dim: width of the layers that read the context; by default as many units as a
        block has, and as many as the context has numbers up to 256.
    :param int num_blocks: number of blocks.
    :param int num_steps: steps of each increasing function; 0 leaves it affine.
    :param str mixing: see :class:`~pyro_implicit.generators.AutoregressiveGenerator`.
    :param float init_scale: standard deviation of each output at initialisation (positive),
        roughly.
    :raises ArgumentError: for values outside of these.
    """

    never_folds = True
    context_loc: Tensor
    context_scale: Tensor

    def __init__(
        self,
        output_dim: int,
        context_dim: int,
        hidden_dim: int | None = None,
        *,
        reader_dim: int | None = None,
        num_blocks: int = 3,
        num_steps: int = 2,
        mixing: str = "auto",
        init_scale: float = 1.0,
    ) -> None:
        m, k = check_count("output_dim", output_dim), check_count("context_dim", context_dim)
        width = width_of(m, hidden_dim)
        reader = max(width, min(k, _MAX_DEFAULT_READER_DIM))
        if reader_dim is not None:
            reader = check_count("reader_dim", reader_dim)
        layers = [nn.Linear(k, reader), nn.SiLU(), nn.Linear(reader, reader), nn.SiLU()]
        super().__init__(m + k, m, width, num_blocks, num_steps, mixing, init_scale, reader)
        self.context_dim, self.reader_dim = k, reader
        self.reader = nn.Sequential(*layers)
        self.register_buffer("context_loc", torch.zeros(k, dtype=torch.float64))
        self.register_buffer("context_scale", torch.ones(k, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """
        Maps noises and contexts to draws.

        :param torch.Tensor inputs: noise, then context, shape ``(..., m + k)``.
        :returns: draws, shape ``(..., m)``.
        """
        z, context = inputs.split([self.output_dim, self.context_dim], -1)
        return self._draw(z, self._read(context, z.dtype))

    def _read(self, context: Tensor, dtype: torch.dtype) -> Tensor:
        """
        What shapes the map, shape ``(..., reader_dim)``, in float32 or better.

        The unit is taken off in the precision of the context, which may be far from 0.
        """
        with torch.autocast(context.device.type, enabled=False):
            x = context.to(torch.promote_types(context.dtype, torch.float32))
            x = (x - self.context_loc.to(x.dtype)) / self.context_scale.to(x.dtype)
            x = x.to(torch.promote_types(dtype, torch.float32))
            if x.dtype == self.weights.dtype:
                return _bounded(self.reader(x))
            weights = [parameter.to(x.dtype) for parameter in self.reader.parameters()]
            for weight, bias in (weights[:2], weights[2:]):
                x = F.silu(F.linear(x, weight, bias))
            return _bounded(x)

    @torch.no_grad()
    def standardise(self, context: Tensor) -> None:
        """
        Makes contexts like these the unit that contexts are read in, entry by entry.

        :param torch.Tensor context: shape ``(rows, k)``. An entry that does not vary keeps its
            unit.
        :raises ShapeError: for another ``k``.
        """
        self._check_context(context)
        rows = context.reshape(-1, self.context_dim).double()
        mean, spread = rows.mean(0), rows.std(0, correction=0)
        # of equal numbers the rounding of their mean is a spread too
        varies = spread.isfinite() & (spread > 0) & (rows.amax(0) > rows.amin(0))
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
        return self._config() | {"context_dim": self.context_dim, "reader_dim": self.reader_dim}


def _bounded(x: Tensor) -> Tensor:
    """
    What was read, in a ball: a context far from the others does not drive the map where they are.

    Each step of the optimiser moves a map of what was read by as much as that is long.
    """
    return x * torch.rsqrt(1 + x.square().mean(-1, keepdim=True))


class _AtContext(Conditioned):
    """The map of each row; its determinant by structure."""

    inner: ConditionalAutoregressiveGenerator
    never_folds = True
    draws_with_log_det = True
    has_structured_log_det = True

    @property
    def is_bijective(self) -> bool:  # type: ignore[override]
        """
        Whether all parameters are finite: then noise and draw of a row determine each other.

        Of a subclass with a map of its own nothing is certain.
        """
        return self._is_own_map and all(
            bool(one.isfinite().all()) for one in self.inner.parameters()
        )

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`; the context is read in its own precision."""
        is_wider = torch.promote_types(self.context.dtype, z.dtype) != z.dtype
        if self._is_own_map and is_wider:
            return self.inner._draw(*self._parts(z))
        return super().forward(z)

    @property
    def _is_own_map(self) -> bool:
        """Whether the map is not that of a subclass."""
        return type(self.inner).forward is ConditionalAutoregressiveGenerator.forward

    def inverse(self, x: Tensor) -> Tensor:
        """
        See :meth:`Generator.inverse`, at the context of each row.

        :param torch.Tensor x: draws, shape ``(..., *batch, m)``.
        :returns: the noises that lead there, of the same shape.
        :raises DensityError: unless :attr:`is_bijective`.
        :raises NonFiniteError: if the noise that was found does not lead there.
        :raises ShapeError: for another number of outputs.
        """
        self.check_outputs(x)
        if not self.is_bijective:
            raise DensityError(
                "a parameter of the generator is not finite, or its map is not that of "
                "ConditionalAutoregressiveGenerator: no inverse is known."
            )
        wide = x.expand(*torch.broadcast_shapes(x.shape[:-1], self.context.shape[:-1]), -1)
        return inverted(self, wide, lambda w: self.inner._undo(w, self._parts(w)[1])).noise

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; the determinant comes with the value."""
        products = partial(super().linearise, z)
        return KnownDeterminant(products, *self.inner._pass(*self._parts(z)))

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.half_log_det`; with output noise the whole Jacobian is formed."""
        if not is_zero(scale):
            return super().half_log_det(z, scale)
        return self.inner._draw_with_log_det(*self._parts(z))[1]

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Noise, and what was read of the context, once for all draws of a row."""
        self.check_noise(z)
        batch = torch.broadcast_shapes(z.shape[:-1], self.context.shape[:-1])
        return z.expand(*batch, -1), self.inner._read(self.context, z.dtype)
