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

_PAIRS = 8  # of draws on both sides of the mean, that gradients are averaged over
_LENGTHS = (1.0, 0.5, 0.25)  # of a step; the first is taken that raises the bound
_MOST = 3  # steps
_JUDGES = 32  # draws that bounds are compared on
_RESOLVED = 0.01  # nats of a gain that counts as none


def centred(density: Callable[[Tensor], Tensor], mean: Tensor, factor: Tensor) -> Tensor:
    """
    Moves a Gaussian to where its evidence bound is higher, if it is anywhere near.

    Its draws are those of a generator of its own.

    :param density: the log-density, NaN outside of its domain.
    :param torch.Tensor mean: shape ``(m,)``.
    :param torch.Tensor factor: a root of the covariance, shape ``(m, m)``, which stays.
    :returns: the mean, ``(m,)``: the old one if no step raises the bound.
    """
    bound = objective(density, mean, factor, _JUDGES)
    generator = torch.Generator("cpu").manual_seed(4)
    for _ in range(_MOST):
        noise = torch.randn(_PAIRS, mean.numel(), generator=generator, device="cpu").to(mean)
        slope = _mean_gradient(density, mean, noise @ factor.mT)
        step = factor @ (factor.mT @ slope)
        for length in _LENGTHS:
            place = mean + length * step
            found = objective(density, place, factor, _JUDGES)
            if found > bound + _RESOLVED:
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
