"""Likelihoods that depend on their latents without a gradient, so that nothing is learned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.latent_rows import AtDraw
from pyro_implicit.handlers.pointwise import SiteVisitor, is_auxiliary, is_delta

__all__ = ["told_of_no_gradient"]


def told_of_no_gradient(
    model: Any, values: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """
    Says that no density of the model but the latents' own has a gradient with respect to them.

    Discrete latents that the model draws by itself are among the densities: what they join may
    reach the others through them alone.

    :param model: a Pyro model.
    :param values: of latents by name, of the shape of their sites.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: a text for a warning; empty if there is a gradient, or nobody can tell.
    """
    leaves = {
        name: value.detach().clone().requires_grad_(True)
        for name, value in values.items()
        if value.is_floating_point()
    }
    densities: list[Tensor] = []
    data: list[str] = []

    def visit(site: Any) -> None:
        if site["name"] in values or is_delta(site) or site_is_subsample(site):
            return
        densities.append(site["fn"].log_prob(site["value"]).sum())
        if site["is_observed"] and not is_auxiliary(site):
            data.append(site["name"])

    try:
        with RandomStream(0), poutine.block(), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            with evaluation_mode(), SiteVisitor(visit), AtDraw({**values, **leaves}):
                model(*args, **kwargs)
            if not (leaves and data) or _reaches(densities, list(leaves.values())):
                return ""
    except Exception:  # what a model does with another draw than those of the steps
        return ""
    return (
        "no observation has a density with a gradient for the latents: the model leaves torch on "
        "the way (.item(), float(), .numpy(), .detach(), torch.no_grad()), or does not use them. "
        "Nothing of the data reaches the guide or the chains; compute with tensors throughout"
    )


def _reaches(densities: list[Tensor], leaves: list[Tensor]) -> bool:
    ends = [one for one in densities if one.requires_grad]
    if not ends:
        return False
    found = torch.autograd.grad(ends, leaves, [torch.ones_like(e) for e in ends], allow_unused=True)
    return any(one is not None for one in found)
