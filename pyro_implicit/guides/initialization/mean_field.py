r"""
A short mean-field fit: a diagonal Gaussian by Adam, with a rate that cools once it is level.

References

- `Automatic Differentiation Variational Inference`, A. Kucukelbir, D. Tran, R. Ranganath,
  A. Gelman, D. M. Blei, Journal of Machine Learning Research, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.ascent import ascend
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.ops.adam_direction import AdamDirection

__all__ = ["MeanField", "fit_mean_field", "fit_mean_field_from", "fit_mean_field_near"]

# The rates were chosen on regressions and classifiers of scikit-learn's own data (diabetes, moons).
_MEAN_LEARNING_RATE = 0.04  # in the mean's units
_LOG_SD_LEARNING_RATE = 0.05
_FINAL_RATE_FACTOR = 0.02  # of the first rate
_STEPS_PER_LOOK = 100  # at whether the bound is level
# The bound is level where it gains less than the larger of the two:
_LEVEL_GAIN_NATS = 0.1
_LEVEL_GAIN_IN_SDS = 0.1  # of the bound of one draw
# Of a fit that begins at a mere point:
_UPHILL_STEPS = 30  # from each point that it may begin at
_INITIAL_SD = 0.01
_MAX_STEPS = 5000
# Standard deviation of the bound of one draw, beside 2 nats for each latent, beyond which nobody
# can tell whether it is level: that of the best diagonal Gaussian at a Gaussian posterior is 0.7 of
# their number at most.
_MAX_BOUND_NOISE_NATS = 5.0
_NUM_BOUND_DRAWS = 200  # that further steps are judged by
_MIN_FURTHER_GAIN_NATS = 0.5  # of these steps, where the fit was not level before
# Of a network, chosen on validation rows of concrete and energy:
_NETWORK_UPHILL_STEPS = 1500  # from the best point
_NETWORK_RATE_FACTOR = 0.1  # of the rates for any other model
_MAX_NETWORK_STEPS = 2000  # log-deviations may rise by 6.7 before they cool


@dataclass(frozen=True)
class MeanField:
    """
    A diagonal Gaussian near the posterior.

    :param torch.Tensor loc: mean, shape ``(m,)``.
    :param torch.Tensor scale: standard deviations, shape ``(m,)``.
    :param bool is_level: whether the objective no longer rose; False if the limit came first.
    """

    loc: Tensor
    scale: Tensor
    is_level: bool


def fit_mean_field(
    density: Callable[[Tensor], Tensor],
    loc: Tensor,
    scale: Tensor,
    num_steps: int,
    unit: Tensor | None = None,
    pace: float = 1.0,
    most_noise: float = math.inf,
    num_samples: int = 1,
) -> MeanField:
    """
    Fits a diagonal Gaussian by Adam on the evidence bound, by default with one draw a step.

    The rate is constant until the bound is level, or two thirds of the steps are gone, and then
    falls by equal ratios; the mean of the last steps is returned.

    :param density: the log-density, NaN outside of its domain; of several draws at once.
    :param torch.Tensor loc: where the mean begins, shape ``(m,)``.
    :param torch.Tensor scale: where the deviations begin, shape ``(m,)``.
    :param int num_steps: most steps, a gradient of the density for each draw.
    :param torch.Tensor unit: of the steps of the mean, shape ``(m,)``; by default 1, or the
        deviation of the moment where that is larger: a latent in dollars has a long way to go.
    :param float pace: factor on the rates of the mean and of the log-deviations.
    :param float most_noise: deviation of the bound of one draw, in nats, beyond which nobody can
        tell whether it is level.
    :param int num_samples: draws a step.
    :returns: the Gaussian.
    """
    fit = _Fit(loc, scale, unit, num_samples)
    limit, cold_from, is_level = num_steps, num_steps - num_steps // 3, False
    values: list[float] = []
    for step in range(num_steps):
        if step >= limit:
            break
        if (
            not is_level
            and step < cold_from
            and step % _STEPS_PER_LOOK == 0
            and _is_level(values, most_noise)
        ):
            is_level, cold_from = True, step
            limit = min(num_steps, step + max(_STEPS_PER_LOOK, step // 3))
        cooling = max(0, step - cold_from) / max(1, limit - cold_from)
        values.append(fit.step(density, pace * _FINAL_RATE_FACTOR**cooling, keep=cooling > 0.5))
    return fit.result(is_level)


def fit_mean_field_near(
    density: Callable[[Tensor], Tensor], points: Sequence[Tensor], *, is_network: bool = False
) -> MeanField:
    """
    Fits a diagonal Gaussian from the highest of some points, after a few steps uphill from each.

    The bound of a network is far from the evidence, and rises most quickly where hidden units are
    given up to the prior, which do not come back: a network is first led uphill much further, and
    then fitted by steps of a tenth of the length.

    :param density: the log-density, NaN outside of its domain.
    :param points: where it may begin, shape ``(m,)`` each.
    :param bool is_network: whether the latents are the weights of one.
    :returns: the Gaussian.
    """
    climbed = [ascend(density, point, _UPHILL_STEPS) for point in points]
    point = max(climbed, key=lambda pair: pair[1])[0]
    begin = torch.full_like(point, _INITIAL_SD)
    if is_network:
        point = ascend(density, point, _NETWORK_UPHILL_STEPS)[0]
        return fit_mean_field(density, point, begin, _MAX_NETWORK_STEPS, pace=_NETWORK_RATE_FACTOR)
    return fit_mean_field_from(density, point, begin)


def fit_mean_field_from(
    density: Callable[[Tensor], Tensor], loc: Tensor, scale: Tensor
) -> MeanField:
    """
    Fits a diagonal Gaussian from another one, for as many steps as it takes up to a limit.

    :param density: the log-density, NaN outside of its domain.
    :param torch.Tensor loc: where the mean begins, shape ``(m,)``.
    :param torch.Tensor scale: where the deviations begin, shape ``(m,)``.
    :returns: the Gaussian.
    """
    noise = _MAX_BOUND_NOISE_NATS + 2 * loc.numel()
    fit = fit_mean_field(density, loc, scale, _MAX_STEPS, most_noise=noise)
    return fit if fit.is_level else _further(density, fit, _MAX_STEPS // 5, noise)


def _further(
    density: Callable[[Tensor], Tensor], fit: MeanField, num_steps: int, most_noise: float
) -> MeanField:
    """
    A fit that came to its limit, or the one that some more steps make of it.

    It was level all the same if these bring nothing: a single draw of data that are in other units
    than the latents is too noisy to tell.
    """
    more = fit_mean_field(density, fit.loc, fit.scale, num_steps, most_noise=most_noise)
    gain = objective(density, more.loc, more.scale, _NUM_BOUND_DRAWS) - objective(
        density, fit.loc, fit.scale, _NUM_BOUND_DRAWS
    )
    best = more if gain > 0 else fit
    return MeanField(best.loc, best.scale, is_level=more.is_level or gain < _MIN_FURTHER_GAIN_NATS)


def _is_level(values: list[float], most_noise: float = math.inf) -> bool:
    """Whether the mean of the last quarter is no higher than that of the quarter before it."""
    series = torch.tensor(values[len(values) // 2 :], dtype=torch.float64)
    series = series[series.isfinite()]
    if len(values) < 3 * _STEPS_PER_LOOK or len(series) < _STEPS_PER_LOOK:
        return False
    before, after = series.tensor_split(2)
    if float(after.std()) > most_noise:
        return False
    level = max(_LEVEL_GAIN_NATS, _LEVEL_GAIN_IN_SDS * float(after.std()))
    return float(after.mean() - before.mean()) < level


class _Fit:
    """
    Mean and log-deviations, the last good ones, and their averages.

    They are the two rows of ``(2, m)``, the mean in its units from where it began.
    """

    def __init__(
        self, loc: Tensor, scale: Tensor, unit: Tensor | None, num_samples: int = 1
    ) -> None:
        self.shape = loc.shape if num_samples == 1 else (num_samples, *loc.shape)
        self.origin, self.grows = loc.detach(), unit is None
        self.unit = torch.ones_like(self.origin) if unit is None else unit
        self.now = torch.stack([torch.zeros_like(self.origin), scale.detach().log()])
        self.rates = self.now.new_tensor([[_MEAN_LEARNING_RATE], [_LOG_SD_LEARNING_RATE]])
        self.direction = AdamDirection()
        self.length = 1.0  # shorter steps for a while after one that failed
        self.kept = self.now
        self.kept_sum, self.num_kept = torch.zeros_like(self.now), 0

    @torch.no_grad()
    def step(self, density: Callable[[Tensor], Tensor], pace: float, *, keep: bool) -> float:
        """Takes one step, or goes back if the bound or its gradient is not finite."""
        scale, noise = self.now[1].exp(), self.origin.new_empty(self.shape).normal_()
        draw = self.origin + self.unit * self.now[0] + scale * noise
        with torch.enable_grad():
            value = density(draw.requires_grad_(True))
            (slope,) = torch.autograd.grad(value.sum(), draw)
        bound = float(value.detach().mean() + self.now[1].sum())
        moved = torch.stack([self.unit * slope, scale * noise * slope + 1])
        gradient = moved if slope.dim() == 1 else moved.mean(1)
        if not (math.isfinite(bound) and bool(gradient.isfinite().all())):
            self.now = self.kept
            self.length *= 0.5
            return math.nan
        self.kept = self.now
        move = self.length * pace * self.rates * self.direction(gradient)
        if self.grows:
            move[0] *= scale.clamp(min=1.0)
        self.now = self.now + move
        self.length = min(1.0, 1.1 * self.length)
        if keep:
            self.kept_sum = self.kept_sum + self.now
            self.num_kept += 1
        return bound

    def result(self, is_level: bool) -> MeanField:
        """The average of what was kept."""
        loc, log_scale = self.kept_sum / self.num_kept if self.num_kept else self.kept
        return MeanField(self.origin + self.unit * loc, log_scale.exp(), is_level)
