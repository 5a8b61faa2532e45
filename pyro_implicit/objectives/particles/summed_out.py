"""A pass of a model whose discrete latents were enumerated, without them."""

from __future__ import annotations

from pyro.infer.util import is_validation_enabled
from pyro.util import check_site_shape

from pyro_implicit.handlers.enumeration.sum_out import inseparable, sum_out
from pyro_implicit.objectives.particles.particle import Particle, Reads

__all__ = ["summed_out"]


def summed_out(particle: Particle, max_plate_nesting: float, reads: Reads) -> Particle:
    """
    Puts marginal factors in the place of sites that depend on enumerated latents.

    :param Particle particle: of an enumerated model, its log-densities computed.
    :param float max_plate_nesting: number of plate dimensions.
    :param Reads reads: what the objective reads.
    :returns: the particle.
    :raises SiteError: if that cannot be done, or a prior must be told apart from the likelihood.
    """
    if is_validation_enabled():
        for node in particle.model_nodes.values():
            if "log_prob" in node:
                check_site_shape(node, max_plate_nesting)  # type: ignore[arg-type]
    factors = sum_out(particle.model)
    drawn = particle.guide_samples.keys() | particle.implicit_latents
    for name, sites in factors.items():
        mixed = [site for site in sites if site in drawn]
        if mixed and reads.apart and particle.model.nodes[name]["is_observed"]:
            raise inseparable(mixed, name)
    return Particle(particle.model, particle.guide, particle.implicit, particle.rows)
