"""Distributions that can be drawn from and not evaluated, and mixtures by row."""

from pyro_implicit.distributions.diagonal_mixture import DiagonalMixture
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.distributions.implicit_sites import sample_implicit
from pyro_implicit.distributions.mixture_density import MixtureDensityNetwork

__all__ = [
    "DiagonalMixture",
    "ImplicitDistribution",
    "MixtureDensityNetwork",
    "sample_implicit",
]
