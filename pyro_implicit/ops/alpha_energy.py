r"""
The data term of black-box alpha inference where it has a closed form.

References

[1] `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019. Eq. 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["normal_alpha_energy"]


def normal_alpha_energy(
    value: Tensor, mean: Tensor, variance: Tensor, noise_variance: Tensor, alpha: float
) -> Tensor:
    r"""
    :math:`\tfrac1\alpha \log \mathbb E[\mathcal N(y; f, \sigma^2)^\alpha]` for each datum, with
    :math:`f \sim \mathcal N(m, v)`:

    .. math::  -\tfrac12 \log(2 \pi \sigma^2) - \tfrac1{2\alpha} \log(1 + \alpha v / \sigma^2)
        - \frac{(y - m)^2}{2 (\sigma^2 + \alpha v)}.

    At ``alpha=0`` it is its limit, the expected log-likelihood, and at ``alpha=1`` the logarithm of
    the predictive density.

    :param torch.Tensor value: ``y``; it and the next three broadcast.
    :param torch.Tensor mean: ``m``.
    :param torch.Tensor variance: ``v``, at least 0.
    :param torch.Tensor noise_variance: :math:`\sigma^2 > 0`.
    :param float alpha: at least 0.
    :returns: of the shape that they have together.
    """
    ratio = variance / noise_variance
    spread = ratio if alpha == 0 else torch.log1p(alpha * ratio) / alpha
    square = (value - mean).square() / (noise_variance * (1 + alpha * ratio))
    return -0.5 * ((2 * torch.pi * noise_variance).log() + spread + square)
