"""Pyro's hidden Markov models, with and without a duration, under a guide."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit, log_predictive_density, predict, refine, to_arviz
from pyro_implicit.exceptions import ShapeError, SiteError

Y = torch.tensor([-1.2, -0.8, 0.9, 1.1, 1.0, -0.7])
TRANSITIONS = torch.tensor([[0.8, 0.2], [0.3, 0.7]])


def markov(y: Tensor, **options: Any) -> None:
    """Two states whose means are latents."""
    mean = pyro.sample("mean", dist.Normal(torch.tensor([-1.0, 1.0]), 0.5).to_event(1))
    seen = dist.Normal(mean, 0.5)
    if options.pop("masked", False):
        mask = torch.tensor(True)
        fn = dist.DiscreteHMM(torch.zeros(2), TRANSITIONS.log(), seen, **options).mask(mask)
    else:
        fn = dist.DiscreteHMM(torch.zeros(2), TRANSITIONS.log(), seen, **options)
    pyro.sample("y", fn, obs=y)


def by_the_forward_algorithm(mean: Tensor) -> Tensor:
    seen = dist.Normal(mean, 0.5).log_prob(Y[:, None])
    alpha = torch.tensor([0.5, 0.5]).log()
    for row in seen:
        alpha = torch.logsumexp(alpha[:, None] + TRANSITIONS.log(), 0) + row
    return alpha.logsumexp(0)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"duration": 6}, {"masked": True}])
def test_a_markov_model_is_fitted_and_scored(options: dict[str, Any]) -> None:
    """One of any number of steps is observed with a shape that its event does not have."""

    def model(y: Tensor) -> None:
        markov(y, **options)

    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, Y, num_steps=5, progress=False, seed=0)
    assert result.objective.vectorize_particles == "vmap"
    pyro.set_rng_seed(0)
    means = guide.sample(400)["mean"]
    expected = torch.stack([by_the_forward_algorithm(mean) for mean in means])
    density = log_predictive_density(model, guide, Y, num_samples=400, seed=0)
    expected = expected.logsumexp(0) - torch.tensor(400.0).log()
    assert float(density.sum()) == pytest.approx(float(expected), abs=0.3)
    chains = refine(model, 3, Y, num_steps=0, progress=False, seed=0)
    assert chains.how == "recorded"


@pytest.mark.parametrize("options", [{}, {"masked": True}])
def test_a_markov_model_without_a_duration_is_not_drawn(options: dict[str, Any]) -> None:
    def model(y: Tensor) -> None:
        markov(y, **options)

    guide = HyperNetworkGuide(model, init_from=None).setup(Y)
    for call in (
        lambda: predict(model, guide, Y, num_samples=2),
        lambda: to_arviz(model, guide, Y),
    ):
        with pytest.raises(SiteError, match="without a duration .* duration=len"):
            call()


def test_a_markov_model_with_a_duration_is_drawn() -> None:
    """Those of Gaussian states are; Pyro draws no time of discrete ones in one piece."""

    def model(y: Tensor) -> None:
        markov(y, duration=6)

    guide = HyperNetworkGuide(model, init_from=None).setup(Y)
    assert predict(model, guide, Y, num_samples=3)["y"].shape == (3, 6)


def test_another_number_of_columns_is_refused() -> None:
    def model(y: Tensor) -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        seen = dist.Normal(z[:, None].expand(2, 2), 1.0).to_event(1)
        pyro.sample("y", dist.DiscreteHMM(torch.zeros(2), TRANSITIONS.log(), seen), obs=y)

    with pytest.raises(ShapeError, match="observes a tensor of shape"):
        fit(model, HyperNetworkGuide(model), torch.zeros(6, 3), num_steps=2, progress=False)
