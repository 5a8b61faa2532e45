"""What a model computes outside of a plate is no datum, and divides none."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import ConditionalHyperNetworkGuide, PosteriorPredictiveLoss
from pyro_implicit.guides import MixtureDensityGuide
from pyro_implicit.objectives import IWAE

N = 12
X = torch.randn(N, 1, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] + 0.5


def model(computes: bool) -> Any:
    def rows(x: Tensor, y: Tensor | None = None) -> None:
        if computes:
            pyro.deterministic("twice", torch.tensor(2.0))
        with pyro.plate("rows", N, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(x[:, 0], 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    return rows


def loss(objective: Any, kind: Any, computes: bool, *data: Tensor, **options: Any) -> float:
    torch.manual_seed(0)
    guide = kind(model(computes), **options)
    guide.setup(X, Y)
    torch.manual_seed(1)
    value: float = objective.loss(model(computes), guide, *data)
    return value


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("count", [N, 5])
def test_each_row_keeps_its_logarithm(vectorised: bool, count: int) -> None:
    few = (X[:count], Y[:count])
    options: Any = {"vectorize_particles": vectorised, "max_plate_nesting": 1}
    values = [
        loss(IWAE(6, **options), ConditionalHyperNetworkGuide, computes, *few)
        for computes in (False, True)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("likelihood", ["per_datum", "expected", "per_batch"])
def test_mixtures_of_rows_explain_no_more_than_data(vectorised: bool, likelihood: str) -> None:
    options: Any = {"vectorize_particles": vectorised, "max_plate_nesting": 1, "form": likelihood}
    values = [
        loss(
            PosteriorPredictiveLoss(4, **options),
            MixtureDensityGuide,
            computes,
            X,
            Y,
            num_components=2,
        )
        for computes in (False, True)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
