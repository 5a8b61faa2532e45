"""The prior of millions of weights, evaluated in the memory of the weights alone."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit.ops.normal_density import normal_log_density

__all__ = ["is_large_normal", "log_density_of_large"]

_MIN_NUMBERS_OF_LARGE_SITE = 2**18
_SERVED_DTYPES = (torch.float32, torch.float64)


def is_large_normal(node: Any) -> bool:
    """
    Whether a site has very many independent normal numbers with constant parameters.

    (Under vmap latents say that they are constant; their derivatives are right, too.)

    :param dict node: a sample site of a trace, with its value.
    :returns: whether :func:`log_density_of_large` is for it.
    """
    value, normal = node["value"], _innermost(node["fn"])
    if type(normal) not in (dist.Normal, torch.distributions.Normal):
        return False
    if (
        not isinstance(value, Tensor)
        or value.numel() < _MIN_NUMBERS_OF_LARGE_SITE
        or value.dtype not in _SERVED_DTYPES
    ):
        return False
    parameters = (normal.loc, normal.scale)
    if any(one.requires_grad or one.dtype != value.dtype for one in parameters):
        return False
    shape = normal.loc.shape
    return bool(value.shape[value.dim() - len(shape) :] == shape)


def log_density_of_large(fn: Any, value: Tensor) -> Tensor:
    """
    The log-density of such a site.

    :param fn: its distribution, of event dimensions of any number.
    :param torch.Tensor value: shape ``(..., *batch_shape, *event_shape)``.
    :returns: shape ``(..., *batch_shape)``.
    """
    normal = _innermost(fn)
    return normal_log_density(value, normal.loc, normal.scale, len(fn.event_shape))


def _innermost(fn: Any) -> Any:
    while type(fn) in (dist.Independent, torch.distributions.Independent):
        fn = fn.base_dist
    return fn
