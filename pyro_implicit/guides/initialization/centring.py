r"""
The mean of a Gaussian whose covariance is given.

A mean-field fit by noisy steps ends a part of *its own* deviations beside the mean. Along
directions in which the posterior is far narrower, as of correlated latents, that is several of the
posterior's deviations. With the covariance known the way back is

.. math:: \mu \leftarrow \mu + \Sigma\, E[\nabla \log p],

which is exact for a Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_implicit.guides.initialization.gaussian_bound import objective

__all__ = ["centred"]

_NUM_ANTITHETIC_PAIRS = 8  # that a gradient is averaged over
_STEP_LENGTHS = (1.0, 0.5, 0.25)  # the first that raises the bound is taken
_MAX_STEPS = 3
_NUM_BOUND_DRAWS = 32
_MIN_GAIN_NATS = 0.01  # of a step that is taken


def centred(density: Callable[[Tensor], Tensor], mean: Tensor, factor: Tensor) -> Tensor:
    """
    Moves a Gaussian to where its evidence bound is higher, if it is anywhere near.

    Its draws are those of a generator of its own.

    :param density: the log-density, NaN outside of its domain.
    :param torch.Tensor mean: shape ``(m,)``.
    :param torch.Tensor factor: a root of the covariance, shape ``(m, m)``, which stays.
    :returns: the mean, ``(m,)``: the old one if no step raises the bound.
    """
    bound = objective(density, mean, factor, _NUM_BOUND_DRAWS)
    generator = torch.Generator("cpu").manual_seed(4)
    for _ in range(_MAX_STEPS):
        shape = _NUM_ANTITHETIC_PAIRS, mean.numel()
        noise = torch.randn(shape, generator=generator, device="cpu").to(mean)
        slope = _mean_gradient(density, mean, noise @ factor.mT)
        step = factor @ (factor.mT @ slope)
        for length in _STEP_LENGTHS:
            place = mean + length * step
            found = objective(density, place, factor, _NUM_BOUND_DRAWS)
            if found > bound + _MIN_GAIN_NATS:
                mean, bound = place, found
                break
        else:
            break
    return mean


def _mean_gradient(density: Callable[[Tensor], Tensor], mean: Tensor, distances: Tensor) -> Tensor:
    """The average over draws on both sides of the mean, without those that are not finite."""
    found = []
    for distance in torch.cat([distances, -distances]):
        point = (mean + distance).detach().requires_grad_(True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(density(point), point)
        if bool(gradient.isfinite().all()):
            found.append(gradient)
    return torch.stack(found).mean(0) if found else torch.zeros_like(mean)
