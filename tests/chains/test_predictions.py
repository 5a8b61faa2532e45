"""Expectations of data under each draw."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit.chains.predictions import expectations
from pyro_implicit.exceptions import SiteError


def classes(x):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        logits = torch.stack([w * x, torch.zeros_like(x)], -1)
        pyro.sample("label", dist.Categorical(logits=logits))
        pyro.sample("count", dist.Poisson((w * x).exp()))


def test_means_and_probabilities():
    x, w = torch.tensor([0.5, 1.0]), torch.randn(2, 3)
    found = expectations(classes, {"w": w}, (x,), {}, None)
    torch.testing.assert_close(found["count"], (w[..., None] * x).exp())
    torch.testing.assert_close(found["label"][..., 0], torch.sigmoid(w[..., None] * x))
    assert list(expectations(classes, {"w": w}, (x,), {}, ["count"])) == ["count"]


def test_a_distribution_without_expectation():
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Cauchy(w, 1.0))

    with pytest.raises(SiteError, match="'x' has a Cauchy, whose expectation is not known"):
        expectations(model, {"w": torch.zeros(1, 2)}, (), {}, None)
