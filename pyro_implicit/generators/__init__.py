"""Neural samplers: from noise to flat latents, each with the fastest exact derivatives it knows."""

from pyro_implicit.generators.base import Generator, ModuleGenerator, as_generator
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.mlp import MLPGenerator
from pyro_implicit.generators.mmnn import CMMNN, MMNN
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.generators.residual import ResidualGenerator

__all__ = [
    "CMMNN",
    "Conditioned",
    "Generator",
    "MLPGenerator",
    "MMNN",
    "ModuleGenerator",
    "Preconditioner",
    "ResidualGenerator",
    "as_generator",
]
