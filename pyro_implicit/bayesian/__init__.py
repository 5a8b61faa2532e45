"""Any network with priors on its parameters, untouched itself."""

from pyro_implicit.bayesian.module import BayesianModule

__all__ = [
    "BayesianModule",
]
