"""Noise of many rows at once, the same whatever the batches that the rows come in."""

# Shape legend: N rows of all batches, R of them in this batch, B in a block.
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._random import torch_seeder
from pyro_implicit.handlers.wrapped import without_events

__all__ = ["RowBlocks", "drawn_by_blocks"]

_MIN_ROWS_PER_BLOCK, _MAX_ROWS_PER_BLOCK = 32, 2048
_NUMBERS_PER_BLOCK = 2**15  # between these: a block is drawn whole, whatever of it a batch needs
_HALF_DTYPES = (torch.float16, torch.bfloat16)
_DEVICES_WITHOUT_DOUBLE = ("mps",)

Noise = Callable[[Tensor], Tensor]


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

    def noise(
        self,
        draw: Noise,
        shape: torch.Size,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """
        Noise for the rows of this batch.

        :param draw: fills a tensor with noise, its entries independent and alike.
        :param torch.Size shape: of one draw of a site in this batch.
        :param int dim: its negative dimension of the rows, R of them.
        :param torch.dtype dtype: of the noise.
        :param torch.device device: where it is.
        :returns: noise of shape ``(*sample_shape, *shape)``, which nobody else has.
        """
        full = [*self.sample_shape, *shape]
        made = torch.empty(full, dtype=dtype, device=device)
        blocks, seed = list(self._blocks(made.numel() // full[dim])), torch_seeder()
        if blocks == [(self.start, self.stop)]:
            seed(self.seed(self.start))
            return draw(made)
        sizes = [min(self.stop, last) - max(self.start, first) for first, last in blocks]
        for (first, last), here in zip(blocks, made.split(sizes, dim), strict=True):
            seed(self.seed(first))
            count = here.shape[dim]
            if count == last - first and here.is_contiguous():
                draw(here)
                continue
            full[dim] = last - first
            block = draw(made.new_empty(full))
            here.copy_(block.narrow(dim, max(self.start - first, 0), count))
        return made

    def _blocks(self, entries: int) -> Iterator[tuple[int, int]]:
        """First and last rows of the blocks of this batch, by the numbers that a row has."""
        wanted = max(_NUMBERS_PER_BLOCK // max(entries, 1), 1)
        size = min(max(1 << (wanted.bit_length() - 1), _MIN_ROWS_PER_BLOCK), _MAX_ROWS_PER_BLOCK)
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
    fn = without_events(fn)
    found = _DRAW_FUNCTIONS.get(type(fn))
    shape = getattr(fn, "batch_shape", ())
    if found is None or len(shape) < -dim or shape[dim] != blocks.stop - blocks.start:
        return None
    if found in (_bernoulli, _categorical) and fn.probs.device.type in _DEVICES_WITHOUT_DOUBLE:
        return None
    return found(fn, dim, blocks)


def _normal(fn: Any, dim: int, blocks: RowBlocks) -> Tensor:
    loc = fn.loc
    dtype = torch.float32 if loc.dtype in _HALF_DTYPES else loc.dtype  # of the noise that is drawn
    noise = blocks.noise(Tensor.normal_, fn.batch_shape, dim, dtype, loc.device).to(loc.dtype)
    value: Tensor = loc + noise * fn.scale
    return value


def _log_normal(fn: Any, dim: int, blocks: RowBlocks) -> Tensor:
    return _normal(fn, dim, blocks).exp()


def _bernoulli(fn: Any, dim: int, blocks: RowBlocks) -> Tensor | None:
    probs = fn.probs
    if not torch._is_all_true((probs >= 0) & (probs <= 1)):
        return None
    happens: Tensor = _uniform(blocks, fn.batch_shape, dim, probs) < probs
    return happens.to(probs.dtype)


def _categorical(fn: Any, dim: int, blocks: RowBlocks) -> Tensor | None:
    probs: Tensor = fn.probs
    sums = probs.double().cumsum(-1)
    total = sums[..., -1]
    if not torch._is_all_true((probs >= 0).all(-1) & (total > 0) & total.isfinite()):
        return None
    at = _uniform(blocks, fn.batch_shape, dim, total) * total
    # The first class whose sum is above: one of no probability never is.
    drawn: Tensor = (sums <= at[..., None]).sum(-1).clamp(max=sums.shape[-1] - 1)
    return drawn


def _uniform(blocks: RowBlocks, shape: torch.Size, dim: int, like: Tensor) -> Tensor:
    """In double precision: events of a probability below 2**-24 are neither lost nor too many."""
    return blocks.noise(Tensor.uniform_, shape, dim, torch.float64, like.device)


_DRAW_FUNCTIONS: dict[type, Callable[[Any, int, RowBlocks], Tensor | None]] = {
    dist.Normal: _normal,
    dist.LogNormal: _log_normal,
    dist.Bernoulli: _bernoulli,
    dist.Categorical: _categorical,
}
