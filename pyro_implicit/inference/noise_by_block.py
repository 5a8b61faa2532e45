"""Noise of many rows at once, the same whatever the batches that the rows come in."""

# Shape legend: N rows of all batches, R of them in this batch, B in a block.
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._random import seed_torch

__all__ = ["RowBlocks", "drawn_by_blocks"]

_FEWEST, _MOST = 32, 2048  # rows of a block
_ENTRIES = 2**15  # numbers of a block: drawn whole, whatever of it a batch needs
_HALVES = (torch.float16, torch.bfloat16)
_NO_DOUBLE = ("mps",)  # devices without double precision

Noise = Callable[[list[int], torch.device], Tensor]


@dataclass(frozen=True)
class RowBlocks:
    """
    Rows in blocks, each with a state of the random generator of its own.

    Blocks begin at the same rows in every batch, and are drawn whole.

    :param int start: first row of this batch.
    :param int stop: one past its last row.
    :param int total: N.
    :param seed: seed of a block by the number of its first row.
    :param tuple sample_shape: several draws, in front of a site's shape.
    """

    start: int
    stop: int
    total: int
    seed: Callable[[int], int]
    sample_shape: tuple[int, ...] = ()

    def noise(self, draw: Noise, shape: torch.Size, dim: int, device: torch.device) -> Tensor:
        """
        Noise for the rows of this batch.

        :param draw: noise of a shape on a device, its entries independent and alike.
        :param torch.Size shape: of one draw of a site in this batch.
        :param int dim: its negative dimension of the rows, R of them.
        :param torch.device device: of the noise.
        :returns: noise of shape ``(*sample_shape, *shape)``.
        """
        full = [*self.sample_shape, *shape]
        parts = []
        for first, last in self._blocks(torch.Size(full).numel() // full[dim]):
            full[dim] = last - first
            seed_torch(self.seed(first))
            start, stop = max(self.start, first), min(self.stop, last)
            parts.append(draw(full, device).narrow(dim, start - first, stop - start))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def _blocks(self, entries: int) -> Iterator[tuple[int, int]]:
        """First and last rows of the blocks of this batch, by the numbers that a row has."""
        wanted = max(_ENTRIES // max(entries, 1), 1)
        size = min(max(1 << (wanted.bit_length() - 1), _FEWEST), _MOST)
        for first in range(self.start - self.start % size, self.stop, size):
            yield first, min(first + size, self.total)


def drawn_by_blocks(fn: Any, dim: int, blocks: RowBlocks) -> Tensor | None:
    """
    A draw of a distribution, from noise that is made for thousands of rows at once.

    :param fn: ``Normal``, ``LogNormal``, ``Bernoulli`` or ``Categorical``, also masked or with
        ``.to_event``.
    :param int dim: negative dimension of the rows in a draw.
    :param RowBlocks blocks: of the rows.
    :returns: shape ``(*sample_shape, *fn.shape())``; None for any other distribution, and for
        parameters that ``torch`` refuses to draw from.
    """
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution)):
        fn = fn.base_dist
    found = _DRAWS.get(type(fn))
    shape = getattr(fn, "batch_shape", ())
    if found is None or len(shape) < -dim or shape[dim] != blocks.stop - blocks.start:
        return None
    if found in (_bernoulli, _categorical) and fn.probs.device.type in _NO_DOUBLE:
        return None
    return found(fn, dim, blocks)


def _normal(fn: Any, dim: int, blocks: RowBlocks) -> Tensor:
    loc = fn.loc
    dtype = torch.float32 if loc.dtype in _HALVES else loc.dtype  # of the noise that is drawn

    def draw(shape: list[int], device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_()

    noise = blocks.noise(draw, fn.batch_shape, dim, loc.device).to(loc.dtype)
    value: Tensor = loc + noise * fn.scale
    return value


def _log_normal(fn: Any, dim: int, blocks: RowBlocks) -> Tensor:
    return _normal(fn, dim, blocks).exp()


def _bernoulli(fn: Any, dim: int, blocks: RowBlocks) -> Tensor | None:
    probs = fn.probs
    if not bool(((probs >= 0) & (probs <= 1)).all()):
        return None
    happens: Tensor = blocks.noise(_uniform, fn.batch_shape, dim, probs.device) < probs
    return happens.to(probs.dtype)


def _categorical(fn: Any, dim: int, blocks: RowBlocks) -> Tensor | None:
    probs: Tensor = fn.probs
    sums = probs.double().cumsum(-1)
    total = sums[..., -1]
    if not bool(((probs >= 0).all(-1) & (total > 0) & total.isfinite()).all()):
        return None
    at = blocks.noise(_uniform, fn.batch_shape, dim, total.device) * total
    # The first class whose sum is above: one of no probability never is.
    return (sums <= at[..., None]).sum(-1).clamp(max=sums.shape[-1] - 1)


def _uniform(shape: list[int], device: torch.device) -> Tensor:
    """In double precision: events of a probability below 2**-24 are neither lost nor too many."""
    return torch.rand(shape, dtype=torch.float64, device=device)


_DRAWS: dict[type, Callable[[Any, int, RowBlocks], Tensor | None]] = {
    dist.Normal: _normal,
    dist.LogNormal: _log_normal,
    dist.Bernoulli: _bernoulli,
    dist.Categorical: _categorical,
}
