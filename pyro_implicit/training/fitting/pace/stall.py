r"""
Whether a noisy loss still falls.

References

- `Batch means and spectral variance estimators in Markov chain Monte Carlo`, J. M. Flegal,
  G. L. Jones, Annals of Statistics, 2010: standard errors of means of autocorrelated series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Slope", "noise_of_step", "slope_of"]

_NUM_BATCH_MEANS = 10  # of a window, which are nearly independent
_WINDOWS_PER_SERIES = 4
_MIN_GAIN_IN_SDS = 0.1  # of one step's loss: smaller gains count as none
# Gains below so many nats count as none too, where a loss has little noise: a thousandth for each
# latent, between these. At 0.05, centred schools (10 latents) end 0.1 nats early; at 0.02,
# zero-inflated counts (54) take 10 000 steps where deviations are right within 5% after 1500.
_MIN_FLOOR_NATS, _FLOOR_NATS_PER_LATENT, _MAX_FLOOR_NATS = 0.02, 0.001, 0.05
_MEDIAN_DIFFERENCE_IN_SDS = 0.954  # of two independent normal numbers
_OUTLIER_IN_MADS = 7.0  # median deviations from the median: 2 in a million normal ones are farther
_RELATIVE_ROUNDING = 1e-6  # of a loss in float32


@dataclass(frozen=True)
class Slope:
    """
    How much the mean of the last window of a loss is below that of the window before it.

    :param float gain: the difference, positive while the loss falls.
    :param float standard_error: of the gain; the autocorrelation of the losses is accounted for.
    :param float tolerance: the gain that counts as none.
    """

    gain: float
    standard_error: float
    tolerance: float

    @property
    def is_flat(self) -> bool:
        """
        Whether the gain is certain to be small.

        Not being able to tell a gain from none is not enough: a short window never is. Nor is the
        luck of a loss that happens to rise.
        """
        return max(self.gain, 0.0) + self.standard_error <= self.tolerance

    @property
    def is_rising(self) -> bool:
        """Whether the loss has certainly grown, by more than the noise of one step."""
        return -self.gain - 4 * self.standard_error > self.tolerance / _MIN_GAIN_IN_SDS


def slope_of(losses: Sequence[float], num_latents: int = 0) -> Slope:
    """
    Compares the last quarter of a series of losses with the quarter before it.

    Windows grow with the series, and their errors shrink, until a gain of a tenth of the noise of
    one step can be told from none. What is left to gain is then about as much: for a loss that
    falls as ``1/t`` it is twice the gain between these windows, and less if it falls faster.

    :param losses: one for each step, at least 40.
    :param int num_latents: of the posterior that is fitted: the more, the less a nat tells.
    :returns: what the series has gained lately.
    """
    series = np.asarray(losses, dtype=float)
    length = len(series) // (_WINDOWS_PER_SERIES * _NUM_BATCH_MEANS) * _NUM_BATCH_MEANS
    noise = noise_of_step(series[-length:])
    before, after = _trimmed(series[-2 * length : -length]), _trimmed(series[-length:])
    variance = _variance_of_mean(before) + _variance_of_mean(after)
    smallest = min(max(_MIN_FLOOR_NATS, _FLOOR_NATS_PER_LATENT * num_latents), _MAX_FLOOR_NATS)
    floor = max(smallest, _RELATIVE_ROUNDING * abs(float(after.mean())))
    return Slope(
        gain=float(before.mean() - after.mean()),
        standard_error=float(np.sqrt(variance)),
        tolerance=max(_MIN_GAIN_IN_SDS * noise, floor),
    )


def noise_of_step(window: np.ndarray) -> float:
    """
    The deviation of one loss from a mean that moves slowly.

    :param window: losses, in order, shape ``(n,)``.
    :returns: the deviation, which a trend or a few outliers leave alone.
    """
    return float(np.median(np.abs(np.diff(window)))) / _MEDIAN_DIFFERENCE_IN_SDS


def _trimmed(window: np.ndarray) -> np.ndarray:
    """With outliers cut to where they are just that: a draw from the tail hides any slope."""
    median = np.median(window)
    spread = _OUTLIER_IN_MADS * np.median(np.abs(window - median))
    return window.clip(median - spread, median + spread)


def _variance_of_mean(window: np.ndarray) -> float:
    """The squared standard error of a window's mean, by batch means."""
    means = window.reshape(_NUM_BATCH_MEANS, -1).mean(-1)
    return float(means.var(ddof=1)) / _NUM_BATCH_MEANS
