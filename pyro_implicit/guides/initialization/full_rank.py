r"""
A Gaussian with all covariances, by natural-gradient steps on the evidence bound.

Where the bound of :math:`N(\mu, \Sigma)` is highest, :math:`\Sigma^{-1}` is the curvature of the
log-density averaged over the Gaussian, and its average gradient is zero. A step of length
:math:`\rho` goes there:

.. math:: \Sigma^{-1} \leftarrow (1 - \rho) \Sigma^{-1} - \rho\, E[\nabla^2 \log p],
          \qquad \mu \leftarrow \mu + \rho\, \Sigma\, E[\nabla \log p].

Second derivatives make this a Newton's method: a few dozen steps, where stochastic gradients of the
covariance's root take ten thousands.

References

- `The Variational Gaussian Approximation Revisited`, M. Opper, C. Archambeau, Neural Computation
  21, 2009.
- `Conjugate-Computation Variational Inference: Converting Variational Inference in Non-Conjugate
  Models to Inferences in Conjugate Models`, M. E. Khan, W. Lin, AISTATS 2017.
- `Handling the Positive-Definite Constraint in the Bayesian Learning Rule`, W. Lin, M. Schmidt,
  M. E. Khan, ICML 2020 (steps must not leave the positive definite matrices).
"""

# Shape legend: m unconstrained latents.
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.curvature import gradient_and_hessian
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.ops.logdet import upcast

__all__ = ["fit_full_rank"]

_INITIAL_RATE, _STEPS_UNTIL_HALF_RATE = 0.5, 20
#: the rate is shortened by this factor, and the steps resumed from the best Gaussian, where the
#: bound has not risen; the next time after _MAX_FALLS of these the steps end
_RATE_FACTOR_AFTER_FALL, _MAX_FALLS = 0.3, 2
_STEPS_PER_LOOK = 10  # at the bound
_MAX_STEPS = 60  # of two Hessians each
_MAX_HESSIAN_PRODUCTS = 30_000  # in all steps together
_LEVEL_GAIN_NATS = 0.1, 0.003  # in all, and for each latent: a smaller gain ends the steps
_MIN_GAIN_NATS = 0.01  # that counts as one
_SAME_HESSIAN_TOLERANCE = 1e-4  # in units of the Gaussian
#: that the estimated bound may seem to fall by where the posterior is Gaussian, and it rises
_MAX_GAUSSIAN_FALL_NATS = 0.1
_NUM_BOUND_DRAWS = 64

_Density = Callable[[Tensor], Tensor]


def fit_full_rank(density: _Density, loc: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """
    Improves a Gaussian as long as its evidence bound rises.

    Its draws are those of a generator of its own. Those where derivatives are not finite are passed
    over; the Gaussian with the highest bound on the way is returned. Where second derivatives are
    everywhere the same, as of a Gaussian, the last step goes all the way, unless the bound falls: a
    density of absolute values has such derivatives, and kinks that they do not see.

    :param density: the log-density, twice differentiable, NaN outside of its domain.
    :param torch.Tensor loc: mean, shape ``(m,)``.
    :param torch.Tensor factor: a root of the covariance, shape ``(m,)`` or ``(m, m)``.
    :returns: mean ``(m,)`` and a root of the covariance ``(m, m)``.
    """
    generator = torch.Generator("cpu").manual_seed(3)
    root = factor if factor.dim() == 2 else torch.diag(factor)
    now = _Gaussian(upcast(loc.detach()), upcast(root))
    best, highest = now, now.bound(density, loc)
    shorter, falls, before, may_be_one = 1.0, 0, None, True
    most = min(_MAX_STEPS, max(_STEPS_PER_LOOK, _MAX_HESSIAN_PRODUCTS // (2 * loc.numel())))
    for step in range(1, most + 1):
        noise = torch.randn(loc.numel(), generator=generator, device="cpu").to(now.mean)
        slopes = _slopes(density, now.mean, now.root @ noise, loc)
        is_same = may_be_one and now.sees_the_same(slopes, before)
        before = slopes
        if slopes is not None:
            rate = shorter * _INITIAL_RATE / (1 + (step - 1) / _STEPS_UNTIL_HALF_RATE)
            now = now.moved(slopes, 1.0 if is_same else rate)
            if step % _STEPS_PER_LOOK and step < most and not is_same:
                continue
        bound = now.bound(density, loc)
        gain = bound - highest if math.isfinite(highest) else math.inf
        least = -_MAX_GAUSSIAN_FALL_NATS if is_same else _MIN_GAIN_NATS
        if math.isfinite(bound) and gain > least:
            best, highest = now, bound
        elif is_same:  # and was none
            now, may_be_one = best, False
            continue
        elif falls < _MAX_FALLS:
            now, shorter, falls = best, _RATE_FACTOR_AFTER_FALL * shorter, falls + 1
            continue
        if is_same or not gain > _LEVEL_GAIN_NATS[0] + _LEVEL_GAIN_NATS[1] * loc.numel():
            break
    return best.mean.to(loc), best.root.to(loc)


@dataclass(frozen=True)
class _Slopes:
    gradient: Tensor
    second: Tensor


@dataclass(frozen=True)
class _Gaussian:
    mean: Tensor
    root: Tensor  # of the covariance

    def bound(self, density: _Density, like: Tensor) -> float:
        return objective(density, self.mean.to(like), self.root.to(like), _NUM_BOUND_DRAWS)

    def sees_the_same(self, one: _Slopes | None, other: _Slopes | None) -> bool:
        """
        Whether two Hessians are equal in the coordinates of the Gaussian.

        One latent that is known well would hide all others in the largest entry.
        """
        if one is None or other is None:
            return False
        parts = [self.root.mT @ each.second @ self.root for each in (one, other)]
        error = _SAME_HESSIAN_TOLERANCE * (1 + parts[0].diagonal().abs())
        error = torch.minimum(error, error[:, None])
        return bool(((parts[0] - parts[1]).abs() <= error).all())

    def moved(self, slopes: _Slopes, rate: float) -> _Gaussian:
        """
        One step, in coordinates where the Gaussian is a standard one.

        There the precision becomes ``1 + change``; where the change is negative its exponential,
        which is the same to first order and stays positive. A whole step is the Hessian itself.
        """
        values, vectors = torch.linalg.eigh(-(self.root.mT @ slopes.second @ self.root))
        change = rate * (values - 1)
        whole = (change > 0) | ((rate == 1) & (values > 0))
        precision = torch.where(whole, 1 + change, change.clamp(min=-1.0).exp())
        root = self.root @ (vectors * precision.rsqrt())
        return _Gaussian(self.mean + rate * (root @ (root.mT @ slopes.gradient)), root)


def _slopes(density: _Density, mean: Tensor, distance: Tensor, like: Tensor) -> _Slopes | None:
    """Averages over draws on both sides of the mean; None if they are finite on neither."""
    total, used = _Slopes(torch.zeros_like(mean), mean.new_zeros(mean.numel(), mean.numel())), 0
    for point in (mean + distance, mean - distance):
        gradient, second = gradient_and_hessian(density, point.to(like))
        if bool(gradient.isfinite().all()) and bool(second.isfinite().all()):
            total, used = _Slopes(total.gradient + gradient, total.second + second), used + 1
    return _Slopes(total.gradient / used, total.second / used) if used else None
