"""Weights of mixtures belong to rows: data of no row are refused, whatever the number of draws."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import MixtureDensityGuide, PosteriorPredictiveLoss
from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives.particles.mixture_weights import weights_of_rows

X = torch.linspace(-1.0, 1.0, 3)[:, None]
Y = torch.tensor([0.2, -0.1, 0.4])


def model(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", len(x)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)
    pyro.sample("total", dist.Normal(w.sum(-1, keepdim=w.dim() > 1), 1.0), obs=torch.tensor(0.5))


@pytest.mark.parametrize("form", ["expected", "per_datum"])
@pytest.mark.parametrize("vectorize", [False, True])
def test_data_of_no_row_are_refused_by_name(form: str, vectorize: bool) -> None:
    objective = PosteriorPredictiveLoss(2, form=form, vectorize_particles=vectorize)
    guide = MixtureDensityGuide(model, num_components=2)
    with pytest.raises(SiteError, match="site 'total' has .* plate of the rows, or use num_compon"):
        objective.loss(model, guide, X, Y)
    one = MixtureDensityGuide(model, num_components=1)
    assert math.isfinite(objective.loss(model, one, X, Y))


def test_weights_of_the_rows_and_of_none_stay_as_they_are() -> None:
    weights = torch.randn(4, 3)
    assert weights_of_rows(weights, torch.zeros(4, 3), "y") is weights
    assert weights_of_rows(weights[0], torch.zeros(4, 3), "y") is not None
    assert weights_of_rows(0.0, torch.zeros(()), "y") == 0.0
    with pytest.raises(SiteError, match=r"shape \(3,\), .* rows of shape \(4, 3\)"):
        weights_of_rows(weights, torch.zeros(3), "y")
