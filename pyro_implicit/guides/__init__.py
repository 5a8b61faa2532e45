"""Guides: from a Pyro model's latents to draws of a generator."""

from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional import ConditionalHyperNetworkGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.guides.initialization.initial import init_to_fan_in
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.matmul import CMMNNGuide, MMNNGuide
from pyro_implicit.guides.mixture_density import MixtureDensityGuide

__all__ = [
    "CMMNNGuide",
    "ConditionalGuide",
    "ConditionalHyperNetworkGuide",
    "HyperNetworkGuide",
    "ImplicitGuide",
    "LatentSite",
    "MMNNGuide",
    "MixtureDensityGuide",
    "init_to_fan_in",
]
