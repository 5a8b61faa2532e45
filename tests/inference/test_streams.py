"""Random numbers of a guide's draw are not those of a model's run at it."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import evaluate, log_predictive_density, predict


class Guide:
    """A latent that is its noise."""

    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {"w": torch.randn(num_samples)}

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {"w": pyro.sample("w", dist.Normal(0.0, 1.0))}


@pytest.mark.filterwarnings("ignore:the guide does not draw")
@pytest.mark.parametrize("num_samples", [1, 4])
@pytest.mark.parametrize("function", [log_predictive_density, evaluate, predict])
@pytest.mark.parametrize("seed", range(3))
def test_a_latent_of_the_prior_is_no_draw_of_the_guide(
    function: Any, num_samples: int, seed: int
) -> None:
    drawn: list[float] = []

    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        drawn.extend((w - z).flatten().tolist())
        pyro.sample("y", dist.Normal(w - z, 0.1), obs=y)

    function(model, Guide(), torch.tensor(0.0), num_samples=num_samples, seed=seed)
    assert drawn and min(map(abs, drawn)) > 0
