"""Implicit variational inference for Pyro: guides that only need to be sampled."""

from pyro_implicit.diagnostics.c2st import c2st
from pyro_implicit.diagnostics.entropy_report import entropy_report
from pyro_implicit.diagnostics.khat import khat
from pyro_implicit.diagnostics.log_density import log_density
from pyro_implicit.diagnostics.stein_discrepancy import stein_discrepancy
from pyro_implicit.diagnostics.to_arviz import to_arviz
from pyro_implicit.diagnostics.vsbc import vsbc
from pyro_implicit.distributions.implicit import ImplicitDistribution, sample_implicit
from pyro_implicit.distributions.process import ImplicitProcess
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide
from pyro_implicit.guides.matmul import CMMNNGuide, MMNNGuide
from pyro_implicit.infer.adversarial import AdversarialELBO
from pyro_implicit.infer.alpha_energy import AlphaEnergy
from pyro_implicit.infer.draws import posterior_draws
from pyro_implicit.infer.elbo import ImplicitELBO
from pyro_implicit.infer.kernel_ratio import KernelDensityRatioELBO
from pyro_implicit.infer.lanczos import LanczosELBO
from pyro_implicit.infer.linearised import LinearisedELBO
from pyro_implicit.infer.predict import predict
from pyro_implicit.infer.semi_implicit import SemiImplicitELBO
from pyro_implicit.infer.singular_value import SingularValueELBO
from pyro_implicit.nn.bayesian import BayesianModule
from pyro_implicit.nn.generator import Generator, ModuleGenerator
from pyro_implicit.nn.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.nn.matmul import CMMNN, MMNN
from pyro_implicit.nn.random_functions import NeuralSampler, RandomNetwork

__all__ = [
    "AdversarialELBO",
    "AlphaEnergy",
    "BayesianModule",
    "CMMNN",
    "CMMNNGuide",
    "Generator",
    "HyperNetworkGuide",
    "ImplicitDistribution",
    "ImplicitELBO",
    "ImplicitGuide",
    "ImplicitProcess",
    "KernelDensityRatioELBO",
    "LanczosELBO",
    "LinearisedELBO",
    "MLPGenerator",
    "MMNN",
    "MMNNGuide",
    "ModuleGenerator",
    "NeuralSampler",
    "RandomNetwork",
    "ResidualGenerator",
    "SemiImplicitELBO",
    "SingularValueELBO",
    "c2st",
    "entropy_report",
    "khat",
    "log_density",
    "posterior_draws",
    "predict",
    "sample_implicit",
    "stein_discrepancy",
    "to_arviz",
    "vsbc",
]
