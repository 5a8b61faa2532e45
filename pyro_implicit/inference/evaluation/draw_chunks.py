"""Draws of a guide, made again when they are needed again if there are too many to keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._random import RandomStream, mixed_seed
from pyro_implicit.inference.posterior_draws import draws_of

__all__ = ["DrawChunks"]

_MAX_NUMBERS_HELD = 2**26  # of draws: a quarter of a gibibyte in single precision


class DrawChunks:
    """
    A fixed sequence of draws, of which only so many are held as memory allows.

    The first tells how large a draw is. The same seed gives the same draws however often they are
    gone through.

    :param guide: any guide.
    :param tuple args: its arguments.
    :param dict kwargs: its keyword arguments.
    :param int num_samples: how many draws.
    :param int seed: of them.
    """

    def __init__(
        self,
        guide: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_samples: int,
        seed: int,
    ) -> None:
        self._call = guide, args, kwargs
        self.num_samples, self.seed = num_samples, seed
        self.first = self._drawn(1, 0)
        numel = sum(value.numel() for value in self.first.values())
        self.size = max(1, _MAX_NUMBERS_HELD // max(numel, 1))  # draws held at a time
        self._held, self._offset = self.first, 0
        if 1 < num_samples <= self.size:
            self._held = self._all()

    def holding(self, index: int) -> tuple[dict[str, Tensor], int]:
        """
        Gives draws among which a certain one is.

        :param int index: of that draw.
        :returns: some draws by site, and the index of the first of them.
        """
        last = self._offset + len(next(iter(self._held.values())))
        if not self._offset <= index < last:
            chunk = 0 if index == 0 else 1 + (index - 1) // self.size
            self._offset = 0 if index == 0 else 1 + (chunk - 1) * self.size
            count = min(self.size, self.num_samples - self._offset)
            self._held = self._drawn(count, chunk) if chunk else self.first
        return self._held, self._offset

    def _all(self) -> dict[str, Tensor]:
        """All draws: of one request, if the guide may make them to belong together."""
        if callable(getattr(self._call[0], "sample", None)):
            return self._drawn(self.num_samples, 1)
        rest = self._drawn(self.num_samples - 1, 1)  # a function's draws may come to an end
        return {name: torch.cat([value, rest[name]]) for name, value in self.first.items()}

    def _drawn(self, count: int, chunk: int) -> dict[str, Tensor]:
        guide, args, kwargs = self._call
        with RandomStream(mixed_seed(self.seed, chunk)):
            return draws_of(guide, count, *args, **kwargs)
