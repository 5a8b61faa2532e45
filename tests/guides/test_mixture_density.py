"""MixtureDensityGuide: an explicit law for each row."""

from __future__ import annotations

import io
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import nn

from pyro_implicit import (
    AlphaEnergy,
    BayesianModule,
    LinearisedELBO,
    MixtureDensityGuide,
    PosteriorPredictiveLoss,
    predict,
)
from pyro_implicit.exceptions import ArgumentError, GuideError, SiteError

Y = torch.linspace(-2, 2, 12)


def conjugate(y):
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 0.5), obs=y)


@pytest.mark.long
@pytest.mark.parametrize(("num_components", "objective"), [(1, Trace_ELBO), (1, AlphaEnergy)])
def test_it_is_an_amortised_posterior(num_components, objective) -> None:
    pyro.set_rng_seed(0)
    options = {"alpha": 0.0} if objective is AlphaEnergy else {}
    guide = MixtureDensityGuide(conjugate, num_components=num_components, activation="tanh")
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.05 ** (1 / 200)})
    svi = SVI(conjugate, guide, optimiser, objective(5, vectorize_particles=True, **options))
    for _ in range(200):
        svi.step(Y)
    draws = guide.sample(2000, torch.tensor([-1.5, 0.2, 1.1]))["z"]
    torch.testing.assert_close(draws.mean(0), torch.tensor([-1.2, 0.16, 0.88]), rtol=0, atol=0.15)
    torch.testing.assert_close(draws.std(0), torch.full((3,), math.sqrt(0.2)), rtol=0.15, atol=0)


def two_valued(x, y=None):
    with pyro.plate("data", 100, subsample_size=len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        return pyro.sample("y", dist.Normal(z[..., 0], 0.3), obs=y)


def two_branches() -> tuple[torch.Tensor, torch.Tensor]:
    """Left of zero y = -1 with three in four; right of it with one in four; else y = 1."""
    x = torch.linspace(-1, 1, 100)[:, None]
    rare = torch.arange(100) % 4 == 0
    return x, torch.where((x[:, 0] < 0) ^ rare, -1.0, 1.0)


@pytest.mark.long
def test_two_components_learn_both_branches_and_their_weights() -> None:
    x, y = two_branches()
    pyro.set_rng_seed(0)
    guide = MixtureDensityGuide(two_valued, num_components=2, init_scale=0.3)
    objective = PosteriorPredictiveLoss(20, vectorize_particles=True)
    svi = SVI(two_valued, guide, pyro.optim.Adam({"lr": 0.08}), objective)
    for _ in range(150):
        svi.step(x, y)
    z = guide.sample(500, x)["z"][..., 0]
    share = (z < 0).float().mean(0)
    assert share[10:40].mean().item() == pytest.approx(0.75, abs=0.1)
    assert share[60:90].mean().item() == pytest.approx(0.25, abs=0.1)
    assert (z.abs() - 1).abs().mean() < 0.3
    y_new = predict(two_valued, guide, x, num_samples=50)["y"]
    assert y_new.shape == (50, 100)


@pytest.mark.parametrize("form", ["expected", "per_batch"])
def test_several_components_serve_every_form(form) -> None:
    x, y = two_branches()
    guide = MixtureDensityGuide(two_valued, num_components=3)
    objective = PosteriorPredictiveLoss(4, form=form, prior_weight=0.1)
    objective.loss_and_grads(two_valued, guide, x, y)
    network = guide.samplers[0]
    logits = network.head.weight.grad[-3:]
    assert logits.isfinite().all() and logits.abs().sum() > 0


def test_several_components_with_trace_elbo_use_the_score() -> None:
    x, y = two_branches()
    guide = MixtureDensityGuide(two_valued, num_components=2)
    Trace_ELBO(2).loss_and_grads(two_valued, guide, x, y)
    assert guide.samplers[0].head.weight.grad[-2:].abs().sum() > 0
    with pytest.raises(SiteError, match="not reparameterised"):
        AlphaEnergy(2).loss(two_valued, guide, x, y)


def test_an_objective_without_anything_to_estimate_says_so() -> None:
    guide = MixtureDensityGuide(conjugate).setup(Y)
    with pytest.raises(GuideError, match="no implicit site"):
        LinearisedELBO().loss(conjugate, guide, Y)


def test_each_rows_mixture_must_explain_data_of_that_row() -> None:
    def pooled(x, y=None):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("mean", dist.Normal(z.mean(-1), 0.1), obs=torch.tensor(0.3))

    guide = MixtureDensityGuide(pooled, num_components=2)
    for form in ("per_datum", "expected", "per_batch"):
        with pytest.raises(SiteError, match="'mean' has log-probabilities of shape"):
            PosteriorPredictiveLoss(2, form=form).loss(pooled, guide, Y[:, None])


@pytest.mark.parametrize("num_components", [1, 3])
def test_it_is_saved_and_drawn_from_without_the_model(num_components) -> None:
    net = BayesianModule(nn.Linear(1, 2), prior=dist.Normal(0.0, 1.0), local=True)

    def model(x):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x), 1.0).to_event(1))

    x = torch.randn(5, 1)
    guide = MixtureDensityGuide(model, num_components=num_components, factorized=True).setup(x)
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = MixtureDensityGuide.from_state_dict(torch.load(file, weights_only=True))
    pyro.set_rng_seed(0)
    first = guide.sample(3, x)
    pyro.set_rng_seed(0)
    second = again.sample(3, x)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_options_of_implicit_guides_are_refused() -> None:
    with pytest.raises(ArgumentError, match="got scale, shared_noise, which only an implicit"):
        MixtureDensityGuide(conjugate, scale=0.1, shared_noise=True)
    with pytest.raises(ArgumentError, match="num_components=0"):
        MixtureDensityGuide(conjugate, num_components=0)
