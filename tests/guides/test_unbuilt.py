"""Pyro's guides that were never called: predict would make them without the observations."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoMultivariateNormal, AutoNormal

from pyro_implicit import EnsembleGuide, fit, predict
from pyro_implicit.exceptions import StateError

X = torch.linspace(-1.0, 1.0, 5)
Y = 0.5 * X


def model(x, y=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(level + slope * x, 1.0), obs=y)


def parts():
    guide = AutoGuideList(model)
    guide.append(AutoNormal(poutine.block(model, expose=["slope"])))
    guide.append(AutoDelta(poutine.block(model, expose=["level"])))
    return guide


MAKERS = {
    "one": lambda: AutoNormal(model),
    "another": lambda: AutoMultivariateNormal(model),
    "a list": parts,
    "an ensemble": lambda: EnsembleGuide([AutoNormal(model), AutoNormal(model)]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_guide_that_was_never_called_predicts_nothing(name):
    """It took the observations for latents, and what came back was empty, without a word."""
    with pytest.raises(StateError, match=r"guide \(Auto\w+\) was never called.*train it first"):
        predict(model, MAKERS[name](), X, num_samples=4)


@pytest.mark.parametrize("name", MAKERS)
def test_once_called_it_predicts(name):
    guide = MAKERS[name]()
    for one in getattr(guide, "guides", [guide]):
        one(X, Y)
    assert predict(model, guide, X, num_samples=4)["y"].shape == (4, 5)


def test_fit_makes_it():
    guide = AutoNormal(model)
    fit(model, guide, X, Y, num_steps=2, progress=False)
    assert predict(model, guide, X, num_samples=4)["y"].shape == (4, 5)
