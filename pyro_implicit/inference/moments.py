"""What predictions keep of the draws that pass: all of them, or their moments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["Draws", "Moments"]


class Draws:
    """Collects draws."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def add(self, value: Tensor) -> None:
        """
        Takes some more draws into account.

        :param torch.Tensor value: some draws, shape ``(s, ...)``.
        """
        self.parts.append(value)

    def result(self) -> Tensor:
        """All draws, shape ``(num_samples, ...)``."""
        return torch.cat(self.parts)


class Moments:
    """Updates mean and sum of squared deviations, chunk by chunk, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.dtype = torch.float64
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, value: Tensor) -> None:
        """
        Takes some more draws into account.

        :param torch.Tensor value: some draws, shape ``(s, ...)``.
        """
        self.dtype = value.dtype if value.is_floating_point() else torch.get_default_dtype()
        count, wide = len(value), value.double()
        mean = wide.mean(0)
        total = self.count + count
        shift = mean - self.mean
        self.squares = self.squares + (wide - mean).square().sum(0)
        self.squares = self.squares + shift.square() * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total

    def result(self) -> Tensor:
        """Mean and variance, shape ``(2, ...)``."""
        variance = self.squares / (self.count - 1 or math.nan)
        return torch.stack([self.mean, variance]).to(self.dtype)
