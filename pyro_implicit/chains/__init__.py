"""Chains that begin at modes or at a guide, and several guides as one: draws, not densities."""

from pyro_implicit.chains.ensemble import EnsembleGuide
from pyro_implicit.chains.hmc import HMC
from pyro_implicit.chains.kernel import Kernel
from pyro_implicit.chains.mclmc import MCLMC
from pyro_implicit.chains.refine import refine
from pyro_implicit.chains.result import Chains

__all__ = ["HMC", "MCLMC", "Chains", "EnsembleGuide", "Kernel", "refine"]
