"""Model and guide in the wrong order are told by every function that takes both."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training.lightning import LightningVI

X = torch.zeros(3)


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=x)


CALLS = {
    "fit": lambda *both: fit(*both, X),
    "refine": lambda *both: refine(*both, X),
    "predict": lambda *both: predict(*both, X, num_samples=2),
    "evaluate": lambda *both: evaluate(*both, X),
    "log_predictive_density": lambda *both: log_predictive_density(*both, X, num_samples=2),
    "to_arviz": lambda *both: to_arviz(*both, X),
    "LightningVI": lambda *both: LightningVI(*both, LinearisedELBO(2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_guide_in_the_place_of_the_model(name):
    chains = refine(
        model, {"w": torch.zeros(1)}, X, num_chains=1, num_steps=0, kernel="hmc", progress=False
    )
    for guide in (HyperNetworkGuide(model), AutoNormal(model), chains):
        with pytest.raises(ArgumentError, match=rf"are swapped. Write {name}\(model, guide, "):
            CALLS[name](guide, HyperNetworkGuide(model) if name == "LightningVI" else model)


def test_the_model_in_the_place_of_the_guide():
    def model(x=None):
        pyro.sample("w", dist.Normal(0.0, 1.0))

    for call in (
        lambda: fit(model, model),
        lambda: predict(model, model, num_samples=2),
        lambda: predict(model, EnsembleGuide([model]), num_samples=2),
        lambda: evaluate(model, model),
        lambda: log_predictive_density(model, model, num_samples=2),
        lambda: to_arviz(model, model),
        lambda: to_arviz(model, [HyperNetworkGuide(model), model]),
        lambda: refine(model, model, num_steps=10),
    ):
        with pytest.raises(ArgumentError, match="the guide is the model itself"):
            call()


@pytest.mark.parametrize("kind", ["AutoNormal", "HyperNetworkGuide", "EnsembleGuide"])
def test_a_guide_of_a_guide_is_refused(kind):
    others = [AutoNormal(model), HyperNetworkGuide(model), EnsembleGuide([AutoNormal(model)])]
    (other,) = [one for one in others if type(one).__name__ == kind]
    with pytest.raises(ArgumentError, match=f"needs a Pyro model; found a guide, {kind}"):
        HyperNetworkGuide(other)
