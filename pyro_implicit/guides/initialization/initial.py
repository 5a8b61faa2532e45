"""First draws that look like a freshly initialised network."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer.autoguide import init_to_mean, init_to_median
from torch import Tensor

from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.supports.own_support import own_support

__all__ = ["fan_in_scale", "init_to_fan_in", "init_to_finite_mean"]


def init_to_fan_in(site: dict[str, Any]) -> Tensor:
    r"""
    A Pyro ``init_loc_fn`` that keeps activations of a network at their size at any depth.

    Sites with two or more event dimensions (linear and convolution weights, outputs first) are
    drawn with variance 2 over their fan-in; every other site starts at its prior mean, or, if that
    is not finite, at a median of draws.

    Normalisation layers start at their prior mean too, which for a standard normal prior is zero
    and blocks the network: give them a prior with mean one, or use ``net.init_to_module``.

    :param dict site: a sample site of the model.
    :returns: its start, in the constrained space, of the shape of the site.
    """
    fn = site["fn"]
    if fn.event_dim < 2 or fn.support.event_dim > fn.event_dim:
        return init_to_finite_mean(site)
    shape = torch.Size(fn.batch_shape + fn.event_shape)
    fan_in = shape[len(shape) - fn.event_dim + 1 :].numel()
    value = torch.randn(shape).to(_example(fn)) * math.sqrt(2 / fan_in)
    return value if bool(own_support(fn).check(value).all()) else init_to_finite_mean(site)


def init_to_finite_mean(site: dict[str, Any]) -> Tensor:
    """
    Starts a site at its prior mean, or at a median of draws where the mean is infinite.

    This is Pyro's ``init_to_mean``, which falls back for NaN alone, made to do so for a half-Cauchy
    prior, say.

    :param dict site: a sample site of the model.
    :returns: its start, in the constrained space.
    """
    value = init_to_mean(site)
    usable: Tensor = value if bool(value.isfinite().all()) else init_to_median(site)
    return usable


def _example(fn: Any) -> Tensor:
    """A tensor of the dtype and device of a distribution's draws; not all can be drawn from."""
    try:
        mean: Tensor = fn.mean
        return mean
    except NotImplementedError:
        return torch.zeros(())


def fan_in_scale(site: LatentSite) -> float:
    """
    The natural size of a site's entries.

    It is one over the root of the fan-in for weights (two or more event dimensions), and 1 for
    anything else.
    """
    if site.event_dim < 2:
        return 1.0
    return 1 / math.sqrt(site.shape[len(site.shape) - site.event_dim + 1 :].numel())
