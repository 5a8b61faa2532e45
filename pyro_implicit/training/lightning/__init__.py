"""Training with Lightning (extra ``lightning``): several devices, exact resume."""

from pyro_implicit.training.lightning.anneal import Anneal
from pyro_implicit.training.lightning.lightning_vi import LightningVI

__all__ = ["Anneal", "LightningVI"]
