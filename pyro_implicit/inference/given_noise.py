"""A run of a model whose noise is handed over, so that it can be drawn outside of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._random import mixed_seed, seed_torch
from pyro_implicit.handlers.wrapped import without_events
from pyro_implicit.inference.noise_by_block import Noise, RowBlocks
from pyro_implicit.inference.predictive_run import PredictiveRun
from pyro_implicit.inference.run_plan import ROWS_PER_SEED, RunPlan

__all__ = ["GivenNoise", "NoiseNeeded", "OtherNoise"]

_HALF_DTYPES = (torch.float16, torch.bfloat16)


class OtherNoise(Exception):  # noqa: N818 (a signal within one call, never shown)
    """A site is drawn in a way that is not known as noise and a function of it."""


@dataclass(frozen=True)
class NoiseNeeded:
    """
    The noise of one site.

    :param int site: number of the site in the run.
    :param draw: fills a tensor with it.
    :param torch.Size shape: of one draw.
    :param dim: negative dimension of the rows; None for noise that all rows share.
    :param torch.dtype dtype: of the noise.
    :param torch.device device: where it is.
    """

    site: int
    draw: Noise
    shape: torch.Size
    dim: int | None
    dtype: torch.dtype
    device: torch.device

    def drawn(self, plan: RunPlan, start: int, stop: int, draw: int) -> Tensor:
        """
        Draws it as a :class:`PredictiveRun` does.

        :param RunPlan plan: what all evaluations share.
        :param int start: first row.
        :param int stop: one past the last row.
        :param int draw: number of the draw.
        :returns: noise, of its shape.
        """

        def seed(row: int) -> int:
            return mixed_seed(plan.seed, draw, row // ROWS_PER_SEED, self.site)

        if self.dim is None:
            seed_torch(seed(0))
            return self.draw(torch.empty(self.shape, dtype=self.dtype, device=self.device))
        blocks = RowBlocks(start, stop, plan.rows, seed)
        return blocks.noise(self.draw, self.shape, self.dim, self.dtype, self.device)


@dataclass(frozen=True)
class _GivenBlocks(RowBlocks):
    """Blocks of rows whose noise is handed over."""

    give: Callable[..., Tensor] = torch.empty

    def noise(
        self,
        draw: Noise,
        shape: torch.Size,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """See :meth:`RowBlocks.noise`."""
        return self.give(draw, shape, dim, dtype, device)


class GivenNoise(PredictiveRun):
    """
    One draw on some rows, with noise of a function.

    :param give: tells the noise of a site.
    :param RunPlan plan: what to predict.
    :param int start: first row.
    :param int stop: one past the last row.
    :param int draw: number of the draw.
    """

    def __init__(
        self,
        give: Callable[[NoiseNeeded], Tensor],
        plan: RunPlan,
        start: int,
        stop: int,
        draw: int = 0,
    ) -> None:
        super().__init__(plan, start, stop, draw, draw + 1, vectorised=False)
        self.give = give

    def _given(self, *needed: Any) -> Tensor:
        return self.give(NoiseNeeded(len(self.shapes), *needed))

    def _blocks(self) -> RowBlocks:
        own = super()._blocks()
        return _GivenBlocks(own.start, own.stop, own.total, own.seed, (), self._given)

    def _drawn(self, fn: Any, unit: int) -> Tensor:
        base = without_events(fn)
        if type(base) not in (dist.Normal, dist.LogNormal) or unit:
            raise OtherNoise
        loc = base.loc
        if loc.dtype in _HALF_DTYPES:
            raise OtherNoise
        noise = self._given(Tensor.normal_, base.batch_shape, None, loc.dtype, loc.device)
        value: Tensor = loc + noise * base.scale
        return value.exp() if type(base) is dist.LogNormal else value
