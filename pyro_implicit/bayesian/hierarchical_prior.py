"""Priors whose width is itself a latent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyro_implicit._checks import check_choice, check_instance, check_text
from pyro_implicit.exceptions import ArgumentError

__all__ = ["hierarchical_prior"]


def hierarchical_prior(
    scale: Any = None, *, by: str = "tensor", name: str = ""
) -> Callable[[str, Tensor], dist.TorchDistribution]:
    r"""
    Normal priors :math:`w \sim \mathcal N(0, s^2)` whose width :math:`s` is learned from the data.

    Each group of parameters has one width, a latent site named ``<group>_scale`` that guides,
    predictions and ArviZ treat as any other. The posterior has the funnel of such models: a guide
    that generates weights and widths together (the default) can follow it.

    Source: `Bayesian Learning for Neural Networks`, Neal, 1996, section 3.2.

    :param scale: distribution of each width, on positive numbers; ``HalfNormal(1)`` by default.
    :param str by: what has a width of its own: ``"tensor"``, ``"layer"`` (weight and bias of one),
        or ``"network"``.
    :param str name: prefix of the widths' sites; give each of several networks one of its own.
    :returns: the ``prior`` of a :class:`~pyro_implicit.BayesianModule`.
    :raises ArgumentError: for another ``by``, or a ``scale`` that is no distribution of one
        positive number, of integers for example.
    """
    scale = dist.HalfNormal(1.0) if scale is None else scale
    check_instance("scale", scale, TorchDistributionMixin, "a distribution of pyro.distributions")
    if scale.batch_shape or scale.event_shape or not _is_positive(scale):
        raise ArgumentError(
            f"scale is {scale}; expected a distribution of one positive number, with a density, "
            "such as dist.HalfNormal(1.0)."
        )
    check_choice("by", by, ("tensor", "layer", "network"))
    prefix = f"{name}." if check_text("name", name) else ""

    def prior(parameter: str, tensor: Tensor) -> dist.TorchDistribution:
        layer = parameter.rpartition(".")[0]
        group = {"tensor": parameter, "layer": layer or "module", "network": "weights"}[by]
        width = pyro.sample(f"{prefix}{group}_scale", scale)
        width = width[(..., *[None] * tensor.dim())]
        prior: dist.TorchDistribution = (
            dist.Normal(tensor.new_zeros(()), width)
            .expand(width.shape[: width.dim() - tensor.dim()] + tensor.shape)
            .to_event(tensor.dim())
        )
        return prior

    return prior


def _is_positive(fn: TorchDistributionMixin) -> bool:
    """Whether the draws of a distribution of one number are positive, and not integers."""
    try:
        support: Any = fn.support
    except NotImplementedError:
        return False
    bound = getattr(support, "lower_bound", None)
    return bound is not None and float(bound) >= 0 and not support.is_discrete
