"""Tells once of latents whose prior is masked and whose entropy is not."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.handlers.masks.masked_latents import warning_of_masked_latent
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta
from pyro_implicit.objectives.particles.particle import Particle

__all__ = ["MaskedWatch"]


class MaskedWatch:
    """
    Looks at the first draw of a model.

    With an entropy and no prior the value is above the evidence, and no bound. A guide that is
    masked as the model is has neither, and a point has no entropy.
    """

    def __init__(self) -> None:
        self._is_done = False

    def __call__(self, particle: Particle) -> None:
        """
        Looks at a draw, unless one was looked at.

        :param Particle particle: guide and model at one draw, or at all of them.
        :warns UserWarning: naming the latents.
        """
        if self._is_done:
            return
        self._is_done = True
        carriers = {
            latent: site.name for site in particle.implicit.values() for latent in site.latents
        }
        for name in sorted(particle.all_latents & particle.model_nodes.keys()):
            drawn = particle.guide_samples.get(carriers.get(name, name))
            text = warning_of_masked_latent(particle.model_nodes[name])
            if not text or drawn is None or _is_masked(drawn):
                continue
            if name in carriers or _has_entropy(drawn, particle):
                warn(text)


def _is_masked(drawn: Any) -> bool:
    """Whether a guide leaves out some of a site as well."""
    masks = (drawn["mask"], getattr(drawn["fn"], "_mask", None))  # around it, and .mask(...)
    if any(mask is False for mask in masks):
        return True
    return any(isinstance(mask, Tensor) and not bool(mask.all()) for mask in masks)


def _has_entropy(drawn: Any, particle: Particle) -> bool:
    """Whether a site is no mere point: the density of one may be at an auxiliary site beside it."""
    beside = any(is_auxiliary(node) for node in particle.guide_samples.values())
    return beside or not is_delta(drawn)
