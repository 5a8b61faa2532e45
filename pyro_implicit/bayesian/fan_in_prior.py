"""Priors whose width is that of a usual initialisation."""

from __future__ import annotations

from collections.abc import Callable

import pyro.distributions as dist
from torch import Tensor

from pyro_implicit._checks import check_number

__all__ = ["fan_in_prior"]


def fan_in_prior(
    scale: float = 1.0, bias_scale: float = 1.0
) -> Callable[[str, Tensor], dist.TorchDistribution]:
    r"""
    Normal priors whose variance falls with the number of inputs of a weight.

    :math:`w \sim \mathcal N(0, \sigma^2 / n_\mathrm{in})`, so that functions drawn from the prior
    keep their size however wide the network is (Neal 1996): with ``Normal(0, 1)`` for all weights
    they grow with the width. ``n_in`` is the product of all sizes but the first.

    Source: `Bayesian Learning for Neural Networks`, Neal, 1996, section 2.1.

    :param float scale: :math:`\sigma` of weights (tensors with two dimensions or more).
    :param float bias_scale: deviation of all other tensors.
    :returns: the ``prior`` of a :class:`~pyro_implicit.BayesianModule`.
    :raises ArgumentError: for deviations that are not positive.
    """
    scale = check_number("scale", scale, above=0)
    bias_scale = check_number("bias_scale", bias_scale, above=0)

    def prior(name: str, tensor: Tensor) -> dist.TorchDistribution:
        inputs = tensor[0].numel() if tensor.dim() > 1 else 0
        width = scale * inputs**-0.5 if inputs else bias_scale
        zeros = tensor.new_zeros(tensor.shape)
        prior: dist.TorchDistribution = dist.Normal(zeros, width).to_event(tensor.dim())
        return prior

    return prior
