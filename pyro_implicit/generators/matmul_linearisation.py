"""Products with the Jacobian of a matrix-multiplication generator."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.matmul import (
    SlopedLayer,
    chain_cotangent,
    chain_pairing,
    chain_tangent,
    kept_cotangent,
    kept_tangent,
)

__all__ = ["MatMulLinearisation"]


class MatMulLinearisation(Linearisation):
    """Shared trunk (possibly none) and branches, each cut to the latents that it serves."""

    def __init__(
        self,
        value: Tensor,
        noise_shape: torch.Size,
        trunk: list[SlopedLayer],
        branches: list[tuple[slice, list[SlopedLayer], torch.Size, int]],
    ) -> None:
        super().__init__(value, noise_shape.numel())
        self._noise_shape, self._trunk, self._branches = noise_shape, trunk, branches

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.jvp`."""
        dx = chain_tangent(self._trunk, v.reshape(*v.shape[:-1], *self._noise_shape))
        parts = []
        for columns, layers, _, count in self._branches:
            out = chain_tangent(layers, dx[..., columns])
            parts.append(out.flatten(-2)[..., :count])
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.vjp`."""
        parts = zip(self._branches, self._as_matrices(u), strict=True)
        pulled = [chain_cotangent(layers, part) for (_, layers, *_), part in parts]
        dx = pulled[0] if len(pulled) == 1 else torch.cat(pulled, -1)
        return chain_cotangent(self._trunk, dx).flatten(-2)

    def kept_jvp(self, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.kept_jvp`."""
        start = v.reshape(*v.shape[:-1], *self._noise_shape)
        dx, kept = kept_tangent(self._trunk, start)
        kept = [start, *kept, dx] if self._trunk else [start]
        parts = []
        for columns, layers, _, count in self._branches:
            out, of_branch = kept_tangent(layers, dx[..., columns])
            parts.append(out.flatten(-2)[..., :count])
            kept += of_branch
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1), kept

    def kept_vjp(self, u: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.kept_vjp`."""
        parts = zip(self._branches, self._as_matrices(u), strict=True)
        pulled = [kept_cotangent(layers, part) for (_, layers, *_), part in parts]
        dy = pulled[0][0] if len(pulled) == 1 else torch.cat([one for one, _ in pulled], -1)
        dx, kept = kept_cotangent(self._trunk, dy)
        kept = [dy, *kept] if self._trunk else []
        return dx.flatten(-2), [*kept, *(one for _, of_branch in pulled for one in of_branch)]

    def pairing(self, u: Tensor, tangents: list[Tensor], cotangents: list[Tensor]) -> Tensor:
        """See :meth:`~pyro_implicit.ops.linearisation.Linearisation.pairing`."""
        kept, back, total = (
            iter(tangents),
            iter(cotangents),
            torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device),
        )
        dx = next(kept)
        if self._trunk:
            dy, num = next(back), len(self._trunk)
            met = list(islice(kept, 2 * num)), list(islice(back, 2 * num - 1))
            total = total + chain_pairing(self._trunk, dx, dy, *met)
            dx = next(kept)
        for (columns, layers, *_), dy in zip(self._branches, self._as_matrices(u), strict=True):
            num = 2 * len(layers) - 1  # the last one is linear
            met = list(islice(kept, num)), list(islice(back, num))
            total = total + chain_pairing(layers, dx[..., columns], dy, *met)
        return total

    def _as_matrices(self, u: Tensor) -> list[Tensor]:
        """Cotangents ``(P, ..., m)`` as one ``(P, ..., a, b)`` for each branch."""
        matrices = []
        cotangents = u.split([count for *_, count in self._branches], -1)
        for (_, _, shape, count), part in zip(self._branches, cotangents, strict=True):
            spare = shape.numel() - count
            full = torch.nn.functional.pad(part, (0, spare)) if spare else part
            matrices.append(full.reshape(*full.shape[:-1], *shape))
        return matrices
