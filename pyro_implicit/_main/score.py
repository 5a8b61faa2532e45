"""What a fit predicts for the test rows, and how good that is, in the target's units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from pyro.infer import Predictive
from torch import Tensor

from .data import Split

COVERAGE = 0.9
NOISE_DRAWS = 20  # of the observation noise, for each draw of the parameters


@dataclass(frozen=True)
class Score:
    """Test scores of one method, and its predictive mean and 90% band for each test row [M].

    ``standard_error`` is that of ``log_likelihood`` as a mean over the rows.
    """

    rmse: float
    log_likelihood: float
    standard_error: float
    coverage: float
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def score(model: Callable[..., Tensor], draws: dict[str, Tensor], split: Split) -> Score:
    """
    Scores draws of the posterior on the test rows.

    The log-likelihood is the mean over the rows of the log of the density averaged over the draws,
    with the Jacobian of the standardisation: it belongs to the target in its own units.

    :param model: the model of :func:`~pyro_implicit._main.model.build_model`.
    :param dict draws: {site: (S, *shape)} of all latents.
    :param Split split: the data; its test part is used.
    """
    with torch.no_grad():
        predictive = Predictive(model, posterior_samples=draws, return_sites=("mean",))
        means = predictive(split.x_test)["mean"].double().reshape(-1, len(split.x_test))  # [S, M]
    noise = draws["sigma"].double().reshape(-1, 1)  # [S, 1]
    standardised = (split.y_test - split.y_mean) / split.y_scale
    densities = torch.distributions.Normal(means, noise).log_prob(standardised)
    per_row = densities.logsumexp(0) - math.log(len(densities)) - math.log(split.y_scale)

    outcomes = means + noise * torch.randn(NOISE_DRAWS, *means.shape, dtype=torch.float64)
    tail = (1.0 - COVERAGE) / 2.0
    band = np.quantile(outcomes.flatten(0, 1).numpy(), [tail, 1.0 - tail], axis=0)
    mean, lower, upper = (
        split.y_mean + split.y_scale * values for values in (means.mean(0).numpy(), *band)
    )
    observed = split.y_test.numpy()
    return Score(
        rmse=float(np.sqrt(np.mean((mean - observed) ** 2))),
        log_likelihood=float(per_row.mean()),
        standard_error=float(per_row.std(correction=0)) / math.sqrt(len(per_row)),
        coverage=float(np.mean((lower <= observed) & (observed <= upper))),
        mean=mean,
        lower=lower,
        upper=upper,
    )
