"""Objectives for guides that can be drawn from and not evaluated; one file each."""

from pyro_implicit.objectives.adversarial import AdversarialELBO
from pyro_implicit.objectives.aisivi import AISIVI
from pyro_implicit.objectives.alpha_energy import AlphaEnergy
from pyro_implicit.objectives.amortised_svgd import AmortisedSVGD
from pyro_implicit.objectives.contrastive import ContrastiveELBO
from pyro_implicit.objectives.critic import Critic
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.iwae import IWAE
from pyro_implicit.objectives.kernel_ratio import KernelDensityRatioELBO
from pyro_implicit.objectives.kpg import KPG
from pyro_implicit.objectives.ksivi import KSIVI
from pyro_implicit.objectives.lanczos import LanczosELBO, LanczosReport
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.objectives.particle_objective import ParticleObjective, Terms
from pyro_implicit.objectives.particles.particle import Reads
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.objectives.predictive_loss import PosteriorPredictiveLoss
from pyro_implicit.objectives.semi_implicit import SemiImplicitELBO
from pyro_implicit.objectives.singular_value import SingularValueELBO, SingularValueReport
from pyro_implicit.objectives.uivi import UIVI

__all__ = [
    "AISIVI",
    "IWAE",
    "KPG",
    "KSIVI",
    "AdversarialELBO",
    "AlphaEnergy",
    "AmortisedSVGD",
    "ContrastiveELBO",
    "Critic",
    "ImplicitELBO",
    "ImplicitSite",
    "KernelDensityRatioELBO",
    "LanczosELBO",
    "LanczosReport",
    "LinearisedELBO",
    "ParticleBatch",
    "ParticleObjective",
    "PosteriorPredictiveLoss",
    "Reads",
    "SemiImplicitELBO",
    "SingularValueELBO",
    "SingularValueReport",
    "Terms",
    "UIVI",
]
