"""Averaged curvature, blended with a mean-field fit's as the evidence bound has it."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Blend"]

_NUM_DRAWS = 16
_WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.4, 0.7)  # of the mean-field fit
_RESOLVED = 0.01  # nats a latent: gains below are left


class Blend:
    """
    Chooses how much of a mean-field precision is mixed to an average of few curvatures.

    An average of fewer matrices than it would take is far too flat in some directions; some of the
    mean-field precision fills these, as in estimates of a covariance from few rows. Weights rise
    as long as the evidence bound does, always on the same draws. A draw is a solution with the
    Cholesky root, so that no eigenvalues are needed.

    :param density: log-density of one point.
    :param torch.Tensor mean: of the Gaussian, shape ``(m,)``.
    :param torch.Tensor scale: deviations of the mean-field Gaussian, shape ``(m,)``.
    """

    def __init__(self, density: Callable[[Tensor], Tensor], mean: Tensor, scale: Tensor) -> None:
        self.density, self.mean, self.scale = density, mean, scale
        generator = torch.Generator().manual_seed(2)
        self._noise = torch.randn(mean.numel(), _NUM_DRAWS, generator=generator).to(mean)
        self._highest = -math.inf

    def is_enough(self, average: Tensor) -> bool:
        """
        Compares an average with those before.

        :param torch.Tensor average: of curvatures, shape ``(m, m)``.
        :returns: whether its best blend has a bound that is higher than any before by less than a
            hundredth of a nat a latent.
        """
        _, bound = self.best(average)
        gain, self._highest = bound - self._highest, max(bound, self._highest)
        return math.isfinite(bound) and gain < _RESOLVED * self.mean.numel()

    def best(self, average: Tensor) -> tuple[Tensor, float]:
        """
        The blend with the highest bound.

        :param torch.Tensor average: of curvatures, shape ``(m, m)``.
        :returns: its precision ``(m, m)`` and its bound but for a constant; the average itself and
            minus infinity where no blend has a finite one.
        """
        best, highest = average, -math.inf
        for weight in _WEIGHTS:
            blend = torch.lerp(average, torch.diag(self.scale.pow(-2)), weight)
            bound = self.bound(blend)
            if bound < highest:
                break
            if bound > highest:
                best, highest = blend, bound
        return best, highest

    @torch.no_grad()
    def bound(self, precision: Tensor) -> float:
        """
        The evidence bound of a Gaussian but for a constant.

        :param torch.Tensor precision: shape ``(m, m)``.
        :returns: an estimate; minus infinity where the precision has no Cholesky root, or a draw no
            finite density.
        """
        root, info = torch.linalg.cholesky_ex(precision)
        if bool(info):
            return -math.inf
        draws = self.mean + torch.linalg.solve_triangular(root.mT, self._noise, upper=True).mT
        mean = float(torch.stack([self.density(draw) for draw in draws]).mean())
        bound = mean - float(root.diagonal().log().sum())
        return bound if math.isfinite(bound) else -math.inf
