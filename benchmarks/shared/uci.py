"""UCI regression: canonical splits, the model, and scores in the target's own units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor

from benchmarks.common import load_npz
from pyro_implicit import BayesianModule
from pyro_implicit.ops.scoring import crps_of_sorted

__all__ = ["Model", "Split", "build_model", "load_split", "ranked_score", "score", "small_weights"]

HIDDEN_UNITS = 50
VALIDATION_PART = 0.15
COVERAGE = 0.9
_OUTCOMES = 4000  # of a row at least, for the CRPS
_ROWS = 1000  # held-out rows at a time
NOISE_DRAWS = 20  # of the observation noise for each draw of the latents, for the coverage

Model = Callable[..., Tensor]


@dataclass(frozen=True)
class Split:
    """Standardised data: x [N, D], y [N] to fit, x [M, D], y [M] to score; the target's scale."""

    x: Tensor
    y: Tensor
    x_held: Tensor
    y_held: Tensor
    y_scale: float

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """The model's arguments."""
        return self.x, self.y


def load_split(
    data_root: Path,
    name: str,
    index: int,
    *,
    validation: bool = False,
    max_rows: int | None = None,
) -> Split:
    """
    :param str name: ``"concrete"``, ``"energy"``, ...
    :param int index: which of the canonical splits.
    :param bool validation: hold out 15% of the training part; the test part is then not touched.
    :param max_rows: the training part is at most so many of its rows, drawn at random, the same for
        ``validation``; all by default. The test part is always whole.
    """
    arrays = load_npz(data_root, f"uci/{name}.npz")
    fit, held = arrays["train_idx"][index], arrays["test_idx"][index]
    if max_rows is not None and max_rows < len(fit):
        fit = fit[np.random.default_rng(2000 + index).permutation(len(fit))[:max_rows]]
    if validation:
        order = np.random.default_rng(1000 + index).permutation(len(fit))
        count = round(VALIDATION_PART * len(fit))
        fit, held = fit[order[count:]], fit[order[:count]]
    x, y = arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    x_mean, x_scale = x[fit].mean(0), x[fit].std(0)
    x_scale[x_scale == 0] = 1.0
    y_mean, y_scale = y[fit].mean(), y[fit].std()
    x, y = (x - x_mean) / x_scale, (y - y_mean) / y_scale

    def tensor(values: np.ndarray) -> Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return Split(tensor(x[fit]), tensor(y[fit]), tensor(x[held]), tensor(y[held]), float(y_scale))


def build_model(
    num_features: int,
    num_rows: int,
    hidden_units: int = HIDDEN_UNITS,
    activation: torch.nn.Module | None = None,
) -> Model:
    """
    One hidden layer of tanh units with standard normal priors, log-normal prior on the noise.

    :param int num_features: D.
    :param int num_rows: number of training rows.
    :param int hidden_units: 50 by default.
    :param activation: of these; tanh by default.
    :returns: a Pyro model ``model(x, y=None)`` with the deterministic site ``mean`` [N]; its
        attribute ``network`` is the :class:`~pyro_implicit.BayesianModule`.
    """
    network = torch.nn.Sequential(
        torch.nn.Linear(num_features, hidden_units),
        torch.nn.Tanh() if activation is None else activation,
        torch.nn.Linear(hidden_units, 1),
    )
    bayesian_network = BayesianModule(network, prior=dist.Normal(0.0, 1.0, validate_args=False))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.LogNormal(-2.0, 1.0))
        output = bayesian_network(x).squeeze(-1)
        with pyro.plate("data", num_rows, subsample_size=len(x)):
            mean = pyro.deterministic("mean", output, event_dim=0)
            return pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    model.network = bayesian_network  # type: ignore[attr-defined]
    return model


def small_weights(site: dict[str, Any]) -> Tensor:
    """
    A start of its own for each mode, so that no two hidden units are alike.

    :param dict site: of the model.
    :returns: its value.
    """
    if site["name"] == "sigma":
        return torch.full(site["fn"].shape(), 0.3)
    drawn: Tensor = site["fn"].sample()
    return 0.3 * drawn


def score(model: Model, draws: dict[str, Tensor], split: Split) -> dict[str, float]:
    """
    RMSE, mean log predictive density per datum, and coverage of the central 90% interval, on the
    held-out rows, of which 1000 at a time are looked at.

    :param dict draws: {site: (S, *shape)} of all latents.
    """
    parts = zip(split.x_held.split(_ROWS), split.y_held.split(_ROWS), strict=True)
    each = [_row_scores(model, draws, replace(split, x_held=x, y_held=y)) for x, y in parts]
    errors, per_row, inside = (torch.cat(values) for values in zip(*each, strict=True))
    return {
        "rmse": float(errors.square().mean().sqrt() * split.y_scale),
        "log_likelihood": float(per_row.mean()),
        "coverage": float(inside.double().mean()),
    }


def _row_scores(model: Model, draws: dict[str, Tensor], split: Split) -> tuple[Tensor, ...]:
    """Error of the mean, log-density, and whether the interval has it, shape ``(M,)`` each."""
    mean, noise = _predicted(model, draws, split)
    held = split.y_held.double()
    log_density = torch.distributions.Normal(mean, noise).log_prob(held)
    per_row = log_density.logsumexp(0) - math.log(len(mean)) - math.log(split.y_scale)
    outcomes = mean + noise * torch.randn(NOISE_DRAWS, *mean.shape, dtype=torch.float64)
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.quantile(outcomes.flatten(0, 1).numpy(), [tail, 1.0 - tail], axis=0)
    inside = (low <= held.numpy()) & (held.numpy() <= high)
    return mean.mean(0) - held, per_row, torch.from_numpy(inside)


def ranked_score(model: Model, draws: dict[str, Tensor], split: Split) -> dict[str, float]:
    """
    Continuous ranked probability score of the held-out rows, in the target's units.

    :param dict draws: {site: (S, *shape)} of all latents.
    """
    mean, noise = _predicted(model, draws, split)
    repeats = max(NOISE_DRAWS, -(-_OUTCOMES // len(mean)))
    outcomes = mean + noise * torch.randn(repeats, *mean.shape, dtype=torch.float64)
    errors = (outcomes - split.y_held.double()).flatten(0, 1).sort(0).values
    return {"crps": float(crps_of_sorted(errors).mean() * split.y_scale)}


@torch.no_grad()
def _predicted(model: Model, draws: dict[str, Tensor], split: Split) -> tuple[Tensor, Tensor]:
    """
    Means of the held-out rows, shape ``(S, M)``, and noises, ``(S, 1)``. The model sees at most as
    many rows at once as there are to fit, which is what its plate has.
    """
    with pyro.validation_enabled(False):
        predictive = Predictive(model, draws, return_sites=("mean",), parallel=True)
        parts = [
            predictive(x)["mean"].double().reshape(-1, len(x))
            for x in split.x_held.split(len(split.x))
        ]
    return torch.cat(parts, -1), draws["sigma"].double().reshape(-1, 1)
