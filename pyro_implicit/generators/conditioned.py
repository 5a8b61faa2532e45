"""A generator that also looks at a context: each row of the data has its own distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit._checks import check_instance
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.generators.base import Generator
from pyro_implicit.ops.linearisation import Linearisation

__all__ = ["Conditioned", "conditioned"]


def conditioned(generator: Generator, context: Tensor) -> Conditioned:
    """
    Holds the last inputs of a generator at a context, by its own route if it has one.

    :param Generator generator: from ``d + k`` flat inputs, noise first.
    :param torch.Tensor context: shape ``(*batch, k)``.
    :returns: the generator of noise alone.
    :raises ShapeError: see :class:`Conditioned`.
    """
    own = getattr(generator, "at_context", None)
    return Conditioned(generator, context) if own is None else own(context)


class Conditioned(Generator):
    """
    A generator with its last inputs held at a context.

    Jacobians and products are those of the inner generator with respect to the noise alone, by the
    inner one's fastest route.

    :param Generator inner: from ``d + k`` flat inputs, noise first, to ``m`` outputs.
    :param torch.Tensor context: shape ``(*batch, k)``; broadcasts with the batch of the noise.
    :raises ArgumentError: for what is no generator, and no tensor.
    :raises ShapeError: if the inner generator's inputs are not flat, or not more than ``k``.
    """

    def __init__(self, inner: Generator, context: Tensor) -> None:
        check_instance("inner", inner, Generator, "a generator")
        check_instance("context", context, Tensor, "a tensor of shape (*batch, k)")
        k = context.shape[-1] if context.dim() else 0
        if len(inner.noise_shape) != 1 or not 0 < k < inner.noise_dim:
            raise ShapeError(
                f"a generator of noise_shape {tuple(inner.noise_shape)} cannot be conditioned on a "
                f"context of shape {tuple(context.shape)}; expected noise_shape (d + k,) for a "
                "context (..., k)."
            )
        super().__init__((inner.noise_dim - k,), inner.output_dim)
        self.inner = inner
        self.context = context

    @property
    def origin(self) -> Generator:
        """See :attr:`Generator.origin`."""
        return self.inner.origin

    @property
    def full_rank(self) -> bool:  # type: ignore[override]
        """Whether draws of each row fill the space."""
        return self.inner.full_rank and self.noise_dim >= self.output_dim

    def _inputs(self, z: Tensor) -> Tensor:
        self.check_noise(z)
        batch = torch.broadcast_shapes(z.shape[:-1], self.context.shape[:-1])
        parts = [z.expand(*batch, -1), self.context.to(z.dtype).expand(*batch, -1)]
        return torch.cat(parts, -1)

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        out: Tensor = self.inner(self._inputs(z))
        return out

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        return self.inner.jacobian(self._inputs(z))[..., : self.noise_dim]

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`."""
        return _FirstInputs(self.inner.linearise(self._inputs(z)), self.noise_dim)


class _FirstInputs(Linearisation):
    """The derivative with respect to the first ``d`` inputs only."""

    def __init__(self, inner: Linearisation, input_dim: int) -> None:
        super().__init__(inner.value, input_dim)
        self._inner, self.by_adjoint = inner, inner.by_adjoint

    def let_go(self) -> None:
        """See :meth:`Linearisation.let_go`."""
        super().let_go()
        self._inner.let_go()

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        rest = v.new_zeros(*v.shape[:-1], self._inner.input_dim - self.input_dim)
        return self._inner.jvp(torch.cat([v, rest], -1))

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        return self._inner.vjp(u)[..., : self.input_dim]
