"""Averaged curvature, blended with a mean-field fit's as the evidence bound has it."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.curvature import mean_curvature
from pyro_implicit.handlers.log_joint import LogJoint

__all__ = ["MAX_LATENTS_FOR_ALL_DRAWS", "Blend", "blended_curvature"]

#: up to here a curvature is so cheap that no draw is spared
MAX_LATENTS_FOR_ALL_DRAWS = 800
#: the latter above MAX_LATENTS_FOR_ALL_DRAWS
_NUM_BOUND_DRAWS, _NUM_BOUND_DRAWS_LARGE = 32, 16
_MEAN_FIELD_WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0)  # tried as long as the bound rises
_MIN_GAIN_NATS_PER_LATENT = 0.01  # of one more pair of curvatures
_SAME_CURVATURE_TOLERANCE = 1e-4  # relative to the largest entry


def blended_curvature(
    log_joint: LogJoint,
    mean: Tensor,
    scale: Tensor,
    num_samples: int = 12,
    *,
    gauss_newton: bool = True,
) -> tuple[Tensor, int]:
    """
    The blend with the highest bound of all averages of some pairs of curvatures.

    Up to :data:`MAX_LATENTS_FOR_ALL_DRAWS` latents all draws are taken, unless the curvature is
    everywhere the same; above until the bound is level.

    :param LogJoint log_joint: the model's density.
    :param torch.Tensor mean: of the mean-field fit, shape ``(m,)``.
    :param torch.Tensor scale: its standard deviations, shape ``(m,)``.
    :param int num_samples: draws with a finite curvature, at most.
    :param bool gauss_newton: as in
        :func:`~pyro_implicit.guides.initialization.curvature.mean_curvature`.
    :returns: its precision ``(m, m)``, and the number of draws that were taken in whole pairs.
    :raises NonFiniteError: if the density or its curvature is finite at none of many draws.
    """
    blend, used = Blend(log_joint.value, mean, scale), [0]
    is_cheap = mean.numel() <= MAX_LATENTS_FOR_ALL_DRAWS
    before: list[Tensor] = []

    def is_enough(average: Tensor) -> bool:
        used[0] += 2
        is_level = blend.is_enough(average) and not is_cheap
        error = _SAME_CURVATURE_TOLERANCE * float(average.abs().max())
        is_same = bool(before) and torch.allclose(average, before[0], rtol=0, atol=error)
        before[:] = [average]
        return is_level or is_same

    average = mean_curvature(
        log_joint,
        mean,
        scale,
        num_samples,
        gauss_newton=gauss_newton,
        unit=scale,
        is_enough=is_enough,
    )
    return blend.best(average)[0], used[0]


class Blend:
    """
    Chooses how much of a mean-field precision is mixed to an average of few curvatures.

    An average of fewer matrices than it would take is far too flat in some directions; some of the
    mean-field precision fills these, as in estimates of a covariance from few rows. Weights rise
    as long as the evidence bound does, always on the same draws. A draw is a solution with the
    Cholesky root, so that no eigenvalues are needed. The best blend is kept: one more curvature can
    make an average worse.

    :param density: log-density of one point.
    :param torch.Tensor mean: of the Gaussian, shape ``(m,)``.
    :param torch.Tensor scale: deviations of the mean-field Gaussian, shape ``(m,)``.
    """

    def __init__(self, density: Callable[[Tensor], Tensor], mean: Tensor, scale: Tensor) -> None:
        self.density, self.mean, self.scale = density, mean, scale
        generator = torch.Generator("cpu").manual_seed(2)
        is_cheap = mean.numel() <= MAX_LATENTS_FOR_ALL_DRAWS
        count = _NUM_BOUND_DRAWS if is_cheap else _NUM_BOUND_DRAWS_LARGE
        noise = torch.randn(mean.numel(), count, generator=generator, device="cpu")
        self._noise = noise.to(mean)
        self._best: Tensor | None = None
        self._last: Tensor | None = None  # of the averages that were told
        self._highest = -math.inf

    def is_enough(self, average: Tensor) -> bool:
        """
        Compares an average with those before.

        :param torch.Tensor average: of curvatures, shape ``(m, m)``.
        :returns: whether its best blend has a bound that is higher than any before by less than a
            hundredth of a nat a latent.
        """
        before = self._highest
        _, highest = self.best(average)
        least = _MIN_GAIN_NATS_PER_LATENT * self.mean.numel()
        return math.isfinite(highest) and highest - before < least

    def best(self, average: Tensor) -> tuple[Tensor, float]:
        """
        The blend with the highest bound, of this average and all before.

        :param torch.Tensor average: of curvatures, shape ``(m, m)``.
        :returns: its precision ``(m, m)`` and its bound but for a constant; the average itself and
            minus infinity where no blend has a finite one.
        """
        is_known = self._last is not None and torch.equal(self._last, average)
        weights = () if is_known else _MEAN_FIELD_WEIGHTS
        self._last, highest = average, -math.inf
        for weight in weights:
            blend = torch.lerp(average, torch.diag(self.scale.pow(-2)), weight)
            bound = self.bound(blend)
            if bound < highest:
                break
            highest = bound
            if bound > self._highest:
                self._best, self._highest = blend, bound
        return (average if self._best is None else self._best), self._highest

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
