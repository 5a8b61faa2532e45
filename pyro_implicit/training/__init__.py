"""Training: ``fit``, schedules, early stopping, loaders that resume, and Lightning."""

from pyro_implicit.training.annealed import Annealed
from pyro_implicit.training.early_stopping import EarlyStopping
from pyro_implicit.training.fitting.fit import fit
from pyro_implicit.training.fitting.result import FitResult
from pyro_implicit.training.recorded import RecordedObjective
from pyro_implicit.training.resumable_loader import ResumableLoader
from pyro_implicit.training.schedules import geometric_schedule, linear_schedule

__all__ = [
    "Annealed",
    "EarlyStopping",
    "FitResult",
    "RecordedObjective",
    "ResumableLoader",
    "fit",
    "geometric_schedule",
    "linear_schedule",
]
