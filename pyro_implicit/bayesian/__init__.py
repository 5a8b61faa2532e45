"""Any network with priors on its parameters, untouched itself."""

from pyro_implicit.bayesian.adapters import with_adapters
from pyro_implicit.bayesian.fan_in_prior import fan_in_prior
from pyro_implicit.bayesian.hierarchical_prior import hierarchical_prior
from pyro_implicit.bayesian.joint_prior import JointPrior
from pyro_implicit.bayesian.last_layer import last_layer
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.bayesian.priors_by_type import priors_by_type

__all__ = [
    "BayesianModule",
    "JointPrior",
    "fan_in_prior",
    "hierarchical_prior",
    "last_layer",
    "priors_by_type",
    "with_adapters",
]
