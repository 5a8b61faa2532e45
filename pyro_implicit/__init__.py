"""
Implicit variational inference for Pyro: guides that only need to be sampled.

Here are the names of daily use. All others are in the sub-package of their kind: generators in
``generators``, objectives in ``objectives``, priors of networks in ``bayesian``, checks of a fit in
``diagnostics``, schedules, loaders and early stopping in ``training``, chains in ``chains``, priors
over functions in ``processes``, priors from posteriors in ``inference``, files in ``saving``, what
a guide or an objective of your own needs in ``guides``, ``distributions`` and ``testing``.

An ``Example`` in a docstring goes on where these lines end, with the names of all sub-packages::

    import arviz as az
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import MCMC, NUTS, SVI
    from pyro.infer.autoguide import AutoNormal
    from pyro.optim import Adam
    from torch import nn

    from pyro_implicit import *
    from pyro_implicit.diagnostics import plots

    x = torch.linspace(-1.0, 1.0, 24).unsqueeze(-1)
    y = 0.5 * x[:, 0] + 0.1 * torch.randn(24)
    x_test, y_test, x_val, y_val = x, y, x, y          # those of your own
    batches = [(x, y)]                                 # or a DataLoader

    network = nn.Sequential(nn.Linear(1, 1, bias=False))
    net = BayesianModule(network, dist.Normal(0.0, 1.0))

    def model(x, y=None):
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, sigma), obs=y)

    guide, other_guide = HyperNetworkGuide(model), HyperNetworkGuide(model)
    fit(model, guide, x, y, seed=0)
    fit(model, other_guide, x, y, seed=1)
"""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.chains.ensemble import EnsembleGuide
from pyro_implicit.chains.refine import refine
from pyro_implicit.diagnostics.entropy_report import entropy_report
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.guides.conditional import ConditionalHyperNetworkGuide
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.guides.matmul import CMMNNGuide, MMNNGuide
from pyro_implicit.guides.mixture_density import MixtureDensityGuide
from pyro_implicit.inference.evaluate import evaluate
from pyro_implicit.inference.log_predictive_density import log_predictive_density
from pyro_implicit.inference.posterior_draws import posterior_draws
from pyro_implicit.inference.predict import predict
from pyro_implicit.objectives.adversarial import AdversarialELBO
from pyro_implicit.objectives.alpha_energy import AlphaEnergy
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.kernel_ratio import KernelDensityRatioELBO
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.objectives.predictive_loss import PosteriorPredictiveLoss
from pyro_implicit.objectives.semi_implicit import SemiImplicitELBO
from pyro_implicit.objectives.singular_value import SingularValueELBO
from pyro_implicit.processes.implicit_process import ImplicitProcess
from pyro_implicit.training.fitting.fit import fit

if TYPE_CHECKING:
    from pyro_implicit.training.lightning import LightningVI as LightningVI

try:
    __version__ = _metadata.version("pyro-implicit")
except _metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AdversarialELBO",
    "AlphaEnergy",
    "BayesianModule",
    "CMMNNGuide",
    "ConditionalHyperNetworkGuide",
    "EnsembleGuide",
    "HyperNetworkGuide",
    "ImplicitDistribution",
    "ImplicitELBO",
    "ImplicitProcess",
    "KernelDensityRatioELBO",
    "LanczosELBO",
    "LinearisedELBO",
    "MMNNGuide",
    "MixtureDensityGuide",
    "ParticleObjective",
    "PosteriorPredictiveLoss",
    "SemiImplicitELBO",
    "SingularValueELBO",
    "__version__",
    "entropy_report",
    "evaluate",
    "fit",
    "log_predictive_density",
    "posterior_draws",
    "predict",
    "refine",
    "to_arviz",
]


#: whose names are public too, where they are not names of this module
_SUBMODULES = (
    "arviz",
    "bayesian",
    "chains",
    "diagnostics",
    "distributions",
    "exceptions",
    "generators",
    "guides",
    "inference",
    "objectives",
    "processes",
    "saving",
    "testing",
    "training",
)


def __getattr__(name: str) -> Any:
    """Imports what is asked for: ``LightningVI``, which needs Lightning, and ``testing``."""
    if name in _SUBMODULES:
        return _import_module(f"{__name__}.{name}")
    if name == "LightningVI":  # not in __all__, so that a star import does not need Lightning
        from pyro_implicit.training.lightning import LightningVI

        return LightningVI
    homes = [home for home in _SUBMODULES if name in _import_module(f"{__name__}.{home}").__all__]
    where = f"; it is in pyro_implicit.{homes[0]}" if homes else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES, "LightningVI", *(n for n in globals() if n[:2] == "__")})
