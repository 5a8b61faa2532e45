"""Series to forecast, and windows of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Series", "Windows"]


@dataclass(frozen=True)
class Series:
    """
    :param values: oldest first, ``(N,)``.
    :param str unit: of the values.
    :param int season: steps after which they are alike.
    :param int past: inputs of a window.
    :param int ahead: outputs of a window.
    :param bool is_ratio: whether a percentage of a value means something.
    """

    values: np.ndarray
    unit: str
    season: int
    past: int
    ahead: int
    is_ratio: bool


class Windows:
    """
    Windows slid over a series, standardised by the mean and scale of the training part.

    :ivar train: inputs ``(N, past)`` and targets ``(N, ahead)``.
    :ivar validation: the same, later.
    :ivar test: the same, later still.
    :ivar seasonal: the values one season before the targets of the test.
    """

    def __init__(self, found: Series) -> None:
        past, ahead, values = found.past, found.ahead, found.values
        count = len(values) - past - ahead + 1
        num_train = round(0.7 * count)
        known = values[: num_train + past + ahead - 1]
        self.series = found
        self.mean, self.scale = float(known.mean()), float(known.std())
        z = torch.as_tensor((values - self.mean) / self.scale, dtype=torch.float32)
        slices = z.unfold(0, past + ahead, 1)
        x, y = slices[:, :past].contiguous(), slices[:, past:].contiguous()
        cut, gap = num_train - num_train // 7, ahead - 1  # no target is in two parts
        self.train = (x[:cut], y[:cut])
        self.validation = (x[cut + gap : num_train], y[cut + gap : num_train])
        self.test = (x[num_train + gap :], y[num_train + gap :])
        start = torch.arange(num_train + gap, count)[:, None] + past + torch.arange(ahead)
        self.seasonal = z[(start - found.season).clamp(min=0)]
