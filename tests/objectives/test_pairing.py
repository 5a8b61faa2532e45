"""What is a latent of the guide must be one of the model, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate

from pyro_implicit import (
    AlphaEnergy,
    HyperNetworkGuide,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    ResidualGenerator,
    sample_implicit,
)
from pyro_implicit.exceptions import SiteError

Make = Callable[..., Any]
Y = torch.tensor([-1.0, 0.5, 2.0])
OBJECTIVES: list[Make] = [
    LinearisedELBO,
    lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, **o),
    lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, contrast="prior", **o),
    lambda n, **o: AlphaEnergy(n, alpha=0.5, **o),
]


# ---- enumeration


def marked(how: str | None) -> Callable[[], None]:
    infer: Any = {"enumerate": how} if how else {}

    def model() -> None:
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)), infer=infer)
            pyro.sample("y", dist.Normal(z * locs[..., 1] + locs[..., 0], 1.0), obs=Y)

    return model


@pytest.mark.parametrize("make", [*OBJECTIVES, PosteriorPredictiveLoss])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_latent_that_is_to_be_enumerated_is_refused(make: Make, vectorised: bool) -> None:
    objective = make(2, vectorize_particles=vectorised)
    for model in (marked("parallel"), marked("sequential"), config_enumerate(marked(None))):
        guide = HyperNetworkGuide(poutine.block(model, hide=["z"])).setup()
        message = r"'z' of the model is to be enumerated.*dist\.MixtureSameFamily"
        for validate in (True, False):
            with pyro.validation_enabled(validate), pytest.raises(SiteError, match=message):
                objective.loss_and_grads(model, guide)


def test_marks_that_change_nothing_are_left_alone() -> None:
    """Of observed sites, and of continuous ones that the guide draws."""

    def model() -> None:
        p = pyro.sample("p", dist.Beta(2.0, 2.0), infer={"enumerate": "parallel"})
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Bernoulli(p), obs=Y.sign().clamp(0))

    marked_all: Any = config_enumerate(model)
    guide = HyperNetworkGuide(marked_all).setup()
    assert LinearisedELBO(2, vectorize_particles=True).loss(marked_all, guide) < float("inf")


# ---- latents of the guide that the model skips


def switch(on: bool = True) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    if on:
        pyro.sample("b", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(a, 1.0), obs=Y)


@pytest.mark.parametrize("make", OBJECTIVES)
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_latent_that_the_model_skips_is_refused(make: Make, vectorised: bool) -> None:
    guide = HyperNetworkGuide(switch, scale=0.1).setup()
    objective = make(2, vectorize_particles=vectorised)
    assert objective.loss(switch, guide) < float("inf")
    message = r"guide draws 'b', which the model does not sample in this call.*hide=\['b'\]"
    observed = pyro.condition(switch, {"b": torch.tensor(1.0)})
    for validate in (True, False):
        with pyro.validation_enabled(validate):
            with pytest.raises(SiteError, match=message):
                objective.loss(switch, guide, False)
            with pytest.raises(SiteError, match="guide draws 'b', which the model observes"):
                objective.loss(observed, guide)


def test_latents_told_by_name_alone_are_seen() -> None:
    generator = ResidualGenerator(2, 2)

    def guide(on: bool = True) -> None:
        site: Any = sample_implicit("ab", ImplicitDistribution(generator), latents=("a", "b"))
        pyro.sample("a", dist.Delta(site[..., 0]))
        if on:
            pyro.sample("b", dist.Delta(site[..., 1].exp(), -site[..., 1]))

    with pytest.raises(SiteError, match="guide draws 'b', which the model does not sample"):
        LinearisedELBO().loss(switch, guide, False)


def test_an_explicit_site_and_an_auxiliary_one() -> None:
    generator = ResidualGenerator(1, 1)

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))

    def guide(infer: Any) -> Callable[[], None]:
        def run() -> None:
            sample_implicit("w", ImplicitDistribution(generator))
            pyro.sample("extra", dist.Normal(0.0, 1.0), infer=infer)

        return run

    with pytest.raises(SiteError, match=r"'extra', which the model.*'is_auxiliary': True"):
        LinearisedELBO().loss(model, guide({}))
    assert LinearisedELBO().loss(model, guide({"is_auxiliary": True})) < float("inf")


def test_an_objective_without_entropy_does_not_mind() -> None:
    guide = HyperNetworkGuide(switch, scale=0.1).setup()
    with pytest.warns(UserWarning, match="vars in guide but not model"):
        assert PosteriorPredictiveLoss(2).loss(switch, guide, False) > 0
