"""What is done with a fitted guide: draws, predictions, scores."""

from pyro_implicit.inference.evaluate import evaluate
from pyro_implicit.inference.evaluation.report import EvaluationReport, Score, SiteEvaluation
from pyro_implicit.inference.guide_prior import GuidePrior
from pyro_implicit.inference.log_predictive_density import log_predictive_density
from pyro_implicit.inference.neutra import NeuTraReparam
from pyro_implicit.inference.posterior_draws import posterior_draws
from pyro_implicit.inference.predict import predict
from pyro_implicit.inference.prior_from import prior_from

__all__ = [
    "EvaluationReport",
    "GuidePrior",
    "NeuTraReparam",
    "Score",
    "SiteEvaluation",
    "evaluate",
    "log_predictive_density",
    "posterior_draws",
    "predict",
    "prior_from",
]
