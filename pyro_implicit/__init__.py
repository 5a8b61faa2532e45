"""Implicit variational inference for Pyro: guides that only need to be sampled."""

from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

from pyro_implicit._main import early as _early  # noqa: F401, first: it answers Ctrl-C
from pyro_implicit.arviz.process_to_arviz import process_to_arviz
from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.chains.ensemble import EnsembleGuide
from pyro_implicit.chains.refine import refine
from pyro_implicit.diagnostics.c2st import c2st
from pyro_implicit.diagnostics.entropy_report import entropy_report
from pyro_implicit.diagnostics.khat import khat
from pyro_implicit.diagnostics.log_density import log_density
from pyro_implicit.diagnostics.stein_discrepancy import stein_discrepancy
from pyro_implicit.diagnostics.vsbc import vsbc
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.distributions.implicit_sites import sample_implicit
from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.mlp import MLPGenerator
from pyro_implicit.generators.mmnn import CMMNN, MMNN
from pyro_implicit.generators.module import ModuleGenerator
from pyro_implicit.generators.residual import ResidualGenerator
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional import ConditionalHyperNetworkGuide
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.guides.matmul import CMMNNGuide, MMNNGuide
from pyro_implicit.guides.mixture_density import MixtureDensityGuide
from pyro_implicit.inference.evaluate import evaluate
from pyro_implicit.inference.evaluation.report import EvaluationReport
from pyro_implicit.inference.log_predictive_density import log_predictive_density
from pyro_implicit.inference.posterior_draws import posterior_draws
from pyro_implicit.inference.predict import predict
from pyro_implicit.objectives.adversarial import AdversarialELBO
from pyro_implicit.objectives.alpha_energy import AlphaEnergy
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.kernel_ratio import KernelDensityRatioELBO
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.objectives.predictive_loss import PosteriorPredictiveLoss
from pyro_implicit.objectives.semi_implicit import SemiImplicitELBO
from pyro_implicit.objectives.singular_value import SingularValueELBO
from pyro_implicit.processes.implicit_process import ImplicitProcess
from pyro_implicit.processes.random_functions import NeuralSampler, RandomNetwork
from pyro_implicit.training.annealed import Annealed
from pyro_implicit.training.early_stopping import EarlyStopping
from pyro_implicit.training.fitting.fit import fit
from pyro_implicit.training.fitting.result import FitResult
from pyro_implicit.training.resumable_loader import ResumableLoader
from pyro_implicit.training.schedules import geometric_schedule, linear_schedule

if TYPE_CHECKING:
    from pyro_implicit.training.lightning.anneal import Anneal as Anneal
    from pyro_implicit.training.lightning.lightning_vi import LightningVI as LightningVI

try:
    __version__ = _metadata.version("pyro-implicit")
except _metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AdversarialELBO",
    "AlphaEnergy",
    "Annealed",
    "AutoregressiveGenerator",
    "BayesianModule",
    "CMMNN",
    "CMMNNGuide",
    "ConditionalHyperNetworkGuide",
    "EarlyStopping",
    "EnsembleGuide",
    "EvaluationReport",
    "FitResult",
    "Generator",
    "HyperNetworkGuide",
    "ImplicitDistribution",
    "ImplicitELBO",
    "ImplicitGuide",
    "ImplicitProcess",
    "ImplicitSite",
    "KernelDensityRatioELBO",
    "LanczosELBO",
    "LinearisedELBO",
    "MLPGenerator",
    "MMNN",
    "MMNNGuide",
    "MixtureDensityGuide",
    "ModuleGenerator",
    "NeuralSampler",
    "ParticleObjective",
    "PosteriorPredictiveLoss",
    "RandomNetwork",
    "ResidualGenerator",
    "ResumableLoader",
    "SemiImplicitELBO",
    "SingularValueELBO",
    "__version__",
    "c2st",
    "entropy_report",
    "evaluate",
    "fit",
    "geometric_schedule",
    "khat",
    "linear_schedule",
    "log_density",
    "log_predictive_density",
    "posterior_draws",
    "predict",
    "process_to_arviz",
    "refine",
    "sample_implicit",
    "stein_discrepancy",
    "to_arviz",
    "vsbc",
]

# Subclasses of Lightning's classes: importable from here like all others, and imported only then.
# Not in __all__, so that a star import does not need Lightning.
_NEED_LIGHTNING = {
    "Anneal": "pyro_implicit.training.lightning.anneal",
    "LightningVI": "pyro_implicit.training.lightning.lightning_vi",
}


def __getattr__(name: str) -> Any:
    if name in _NEED_LIGHTNING:
        from importlib import import_module

        return getattr(import_module(_NEED_LIGHTNING[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_LIGHTNING})
