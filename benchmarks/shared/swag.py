"""
Stochastic weight averaging, Gaussian (SWAG): a posterior from the path of stochastic gradients.

Source: `A Simple Baseline for Bayesian Uncertainty in Deep Learning`, W. Maddox, T. Garipov,
P. Izmailov, D. Vetrov, A. G. Wilson, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["PathMoments"]


class PathMoments:
    """
    Moments of the weights along a path.

    :param int rank: how many of the last deviations from the running mean are kept.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.count = rank, 0
        self.mean = self.square = torch.zeros(())
        self.deviations: list[Tensor] = []
        self._stacked: Tensor | None = None  # the deviations, once they are drawn from

    def see(self, weights: Tensor) -> None:
        """
        :param Tensor weights: one place on the path, shape ``(m,)``.
        """
        share = 1 / (self.count + 1)
        self.mean = self.mean + share * (weights - self.mean)
        self.square = self.square + share * (weights.square() - self.square)
        self.deviations = [*self.deviations, weights - self.mean][-self.rank :]
        self.count, self._stacked = self.count + 1, None

    def draw(self) -> Tensor:
        """Weights of shape ``(m,)``: half the covariance is diagonal, half of low rank."""
        variance = (self.square - self.mean.square()).clamp(min=1e-30)
        if self._stacked is None:
            self._stacked = torch.stack(self.deviations, -1)
        low = self._stacked
        rank = low.shape[-1]
        part = low @ torch.randn(rank) / (2 * max(rank - 1, 1)) ** 0.5
        return self.mean + variance.sqrt() * torch.randn(len(low)) / 2**0.5 + part

    def see_all(self, path: Iterable[Tensor]) -> PathMoments:
        """
        :param path: places, shape ``(m,)`` each.
        :returns: itself.
        """
        for weights in path:
            self.see(weights)
        return self
