"""What a fit predicts for the test rows, and how good that is, in the target's units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_implicit.handlers.pointwise import run_model

from .data import Split

COVERAGE = 0.9
NOISE_DRAWS = 20  # of the observation noise, for each draw of the parameters
MEANS = 2**23  # of rows and draws, made at a time, 64 MiB; each draw is one run of the model
# of rows, draws and noise, made at a time: 64 MiB. Below 32 MiB glibc keeps what is freed for
# itself, and over a large table what it kept grew to 1.4 GiB
OUTCOMES = 2**23


@dataclass(frozen=True)
class Score:
    """Test scores of one method, and its predictive mean and 90% band for each test row ``(M,)``.

    ``standard_error`` is that of ``log_likelihood`` as a mean over the rows, NaN for one row.
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

    Some rows at a time: memory does not grow with the table.

    :param model: the model of :func:`~pyro_implicit._main.model.build_model`.
    :param dict draws: {site: (S, *shape)} of all latents.
    :param Split split: the data; its test part is used.
    """
    noise = draws["sigma"].double().reshape(-1, 1)  # [S, 1]
    standardised = (split.y_test - split.y_mean) / split.y_scale
    parts = []
    for rows in _cut(len(split.x_test), MEANS // len(noise)):
        means = _means(model, draws, split.x_test[rows])
        for few in _cut(means.shape[-1], OUTCOMES // (len(noise) * NOISE_DRAWS)):
            parts.append(_predictions(means[:, few], noise, standardised[rows][few]))
    log_densities, mean, lower, upper = (np.concatenate(each) for each in zip(*parts, strict=True))
    per_row = log_densities - math.log(split.y_scale)
    observed = standardised.numpy()
    return Score(
        rmse=split.y_scale * float(np.sqrt(np.mean((mean - observed) ** 2))),
        log_likelihood=float(per_row.mean()),
        standard_error=standard_error(per_row),
        coverage=float(np.mean((lower <= observed) & (observed <= upper))),
        mean=split.y_mean + split.y_scale * mean,
        lower=split.y_mean + split.y_scale * lower,
        upper=split.y_mean + split.y_scale * upper,
    )


def standard_error(values: np.ndarray) -> float:
    """
    The standard error of a mean of independent values.

    :param numpy.ndarray values: independent ones.
    :returns: that of their mean; NaN for a single one, which tells nothing of its spread.
    """
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _cut(length: int, at_a_time: int) -> tuple[Tensor, ...]:
    return torch.arange(length).split(max(1, at_a_time))


def _means(model: Callable[..., Tensor], draws: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network's output for each draw and row, ``(S, rows)``; no trace is kept (or made)."""
    means = torch.empty(len(draws["sigma"]), len(x), dtype=torch.float64)
    for s, row in enumerate(means):

        def visit(site: Any, row: Tensor = row) -> None:
            if site["name"] == "mean":
                row.copy_(site["value"])

        run_model(model, (x,), {}, visit, values={name: value[s] for name, value in draws.items()})
    return means


def _predictions(means: Tensor, noise: Tensor, y: Tensor) -> tuple[np.ndarray, ...]:
    """Log-density of each row, mean and band of its prediction, standardised, ``(rows,)``."""
    densities = torch.distributions.Normal(means, noise).log_prob(y)
    log_density = densities.logsumexp(0) - math.log(len(densities))
    outcomes = means + noise * torch.randn(NOISE_DRAWS, *means.shape, dtype=torch.float64)
    tail = (1.0 - COVERAGE) / 2.0
    band = np.quantile(outcomes.flatten(0, 1).numpy(), [tail, 1.0 - tail], axis=0)
    return (log_density.numpy(), means.mean(0).numpy(), *band)
