r"""
The data term of black-box alpha inference, from draws and where it has a closed form.

References

- `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019. Eq. 11.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["MIN_POWER", "log_power_mean", "normal_alpha_energy"]

#: what a smaller power changes is far below rounding, and float32 still holds this one
MIN_POWER = 1e-18


def log_power_mean(log_values: Tensor, power: float) -> Tensor:
    r"""
    The logarithm of a power mean, :math:`\tfrac1\alpha \log \tfrac1S \sum_s p_s^\alpha`.

    It is right also where :math:`\alpha` is small: the logarithm is then a small number beside
    :math:`\log S`, and dividing what rounding left of it by :math:`\alpha` would magnify the
    rounding.

    :param torch.Tensor log_values: :math:`\log p_s`, draws in front, shape ``(S, *batch)``.
    :param float power: :math:`\alpha`, at least :data:`MIN_POWER`.
    :returns: shape ``batch``; at least in single precision unless ``power`` is 1.
    """
    count = math.log(log_values.shape[0])  # theory/predictive.md (log-power-mean)
    if power == 1:
        return log_values.logsumexp(0) - count
    values = log_values.to(torch.promote_types(log_values.dtype, torch.float32))
    largest = values.detach().amax(0)
    largest = torch.where(largest.isfinite(), largest, torch.zeros_like(largest))
    scaled = power * (values - largest)
    excess = scaled.expm1().mean(0)  # no more than 0
    near = excess > -0.5
    # each is exact where the other is not; neither overflows, so that gradients stay finite
    value = torch.where(near, excess.clamp(min=-0.5).log1p(), scaled.logsumexp(0) - count)
    return largest + value / power


def normal_alpha_energy(
    value: Tensor, mean: Tensor, variance: Tensor, noise_variance: Tensor, alpha: float
) -> Tensor:
    r"""
    The alpha energy of Gaussian data around a Gaussian function, in closed form.

    :math:`\tfrac1\alpha \log \mathbb E[\mathcal N(y; f, \sigma^2)^\alpha]` for each datum, with
    :math:`f \sim \mathcal N(m, v)`:

    .. math::  -\tfrac12 \log(2 \pi \sigma^2) - \tfrac1{2\alpha} \log(1 + \alpha v / \sigma^2)
        - \frac{(y - m)^2}{2 (\sigma^2 + \alpha v)}.

    At ``alpha=0`` it is its limit, the expected log-likelihood, and at ``alpha=1`` the logarithm of
    the predictive density.

    :param torch.Tensor value: ``y``, of any shape; it and the next three broadcast.
    :param torch.Tensor mean: ``m``, of any shape.
    :param torch.Tensor variance: ``v``, at least 0, of any shape.
    :param torch.Tensor noise_variance: :math:`\sigma^2 > 0`, of any shape.
    :param float alpha: at least 0.
    :returns: one value for each datum, of the shape of all four together.
    """
    ratio = variance / noise_variance  # theory/processes.md (process-alpha-energy)
    spread = ratio if alpha < MIN_POWER else torch.log1p(alpha * ratio) / alpha
    square = (value - mean).square() / (noise_variance * (1 + alpha * ratio))
    return -0.5 * ((2 * torch.pi * noise_variance).log() + spread + square)
