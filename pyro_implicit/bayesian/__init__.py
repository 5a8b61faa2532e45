"""Any network with priors on its parameters, untouched itself."""

from pyro_implicit.bayesian.joint_prior import JointPrior
from pyro_implicit.bayesian.module import BayesianModule

__all__ = [
    "BayesianModule",
    "JointPrior",
]
