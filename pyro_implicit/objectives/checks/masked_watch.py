"""Tells once of latents whose prior is masked and whose entropy is not."""

from __future__ import annotations

from pyro_implicit._warn import warn
from pyro_implicit.handlers.masks.masked_latents import warning_of_masked_latent
from pyro_implicit.objectives.particles.particle import Particle

__all__ = ["MaskedWatch"]


class MaskedWatch:
    """
    Looks at the first draw of a model.

    With an entropy and no prior the value is above the evidence, and no bound. A guide that is
    masked as the model is has neither.
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
            if text and drawn is not None and drawn["mask"] is None:
                warn(text)
