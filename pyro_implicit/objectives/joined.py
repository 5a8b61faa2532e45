"""Implicit sites of several particles, or of a few of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from pyro_implicit.objectives.particle import ImplicitSite, Particle

__all__ = ["first_draws", "joined_sites"]


def first_draws(site: ImplicitSite, keep: int) -> ImplicitSite:
    """The first ``keep`` draws of a site with vectorised particles."""
    noise = site.distribution.noise[:keep]  # type: ignore[index]
    return replace(site, distribution=site.distribution.given(noise), value=site.value[:keep])


def joined_sites(particles: list[Particle]) -> list[ImplicitSite]:
    """The implicit sites with the draws of all particles in front."""
    joined = []
    for name, site in particles[0].implicit.items():
        parts = [p.implicit[name] for p in particles]
        noise = torch.stack([p.distribution.noise for p in parts])  # type: ignore[misc]
        value = torch.stack([p.value for p in parts])
        joined.append(replace(site, distribution=site.distribution.given(noise), value=value))
    return joined
