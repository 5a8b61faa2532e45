"""Neural samplers: from noise to flat latents, each with the fastest exact derivatives it knows."""

from pyro_implicit.generators.as_generator import as_generator
from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.bijective import BijectiveGenerator
from pyro_implicit.generators.cmmnn import CMMNN
from pyro_implicit.generators.conditional_autoregressive import ConditionalAutoregressiveGenerator
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.mlp import MLPGenerator
from pyro_implicit.generators.mmnn import MMNN
from pyro_implicit.generators.module import ModuleGenerator
from pyro_implicit.generators.nnj import NnjGenerator
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.generators.residual import ResidualGenerator

__all__ = [
    "AutoregressiveGenerator",
    "BijectiveGenerator",
    "CMMNN",
    "ConditionalAutoregressiveGenerator",
    "Conditioned",
    "Generator",
    "MLPGenerator",
    "MMNN",
    "ModuleGenerator",
    "NnjGenerator",
    "Preconditioner",
    "ResidualGenerator",
    "as_generator",
]
