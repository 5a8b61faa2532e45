"""Latents that a mask leaves without a prior are told, and fit promises nothing."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit, refine
from pyro_implicit.handlers.masks.masked_latents import (
    warning_of_hidden_values,
    warning_of_masked_latent,
)
from pyro_implicit.training import RecordedObjective

Y = torch.randn(12)
KNOWN = torch.arange(12) < 9


def with_gaps(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 12):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y, obs_mask=KNOWN)


def masked(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 12):
        with poutine.mask(mask=KNOWN):
            effect = pyro.sample("effect", dist.Normal(mean, 1.0))
        pyro.sample("y", dist.Normal(effect, 1.0), obs=y)


@pytest.mark.long
def test_fit_promises_nothing_and_refine_tells() -> None:
    with pytest.warns(UserWarning, match="'effect' is masked in 3 places"):
        result = fit(masked, HyperNetworkGuide(masked), Y, num_steps=2, progress=False)
    assert result.promise == ""
    assert any("is masked in 3 places" in text for text in result.warnings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refine(masked, 2, Y, num_chains=2, num_steps=20, mode_steps=2, progress=False)
    told = [one for one in told if "is masked in 3 places" in str(one.message)]
    assert len(told) == 1 and told[0].filename == __file__


def test_what_obs_mask_hides_is_told_for_objectives_of_pyro_alone() -> None:
    with pytest.warns(UserWarning, match="'y_unobserved' is masked in 9 places.*replicates"):
        result = fit(with_gaps, AutoNormal(with_gaps), Y, num_steps=2, progress=False)
    assert result.promise == "" and len(result.warnings) == len(set(result.warnings))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = fit(with_gaps, HyperNetworkGuide(with_gaps), Y, num_steps=2, progress=False)
        refine(with_gaps, 2, Y, num_chains=2, num_steps=20, mode_steps=2, progress=False)
        recorded = RecordedObjective(LinearisedELBO(2, vectorize_particles=True))
        options: Any = {"objective": recorded, "num_steps": 2, "progress": False}
        fit(with_gaps, HyperNetworkGuide(with_gaps), Y, **options)
    assert not any("masked" in str(one.message) for one in told)
    assert "lower bound" in result.promise


def test_a_model_that_cannot_be_drawn_from_is_not_told_of() -> None:
    def model() -> None:
        raise ValueError("no")

    assert warning_of_hidden_values(model, (), {}) == []


def test_others_are_not_told() -> None:
    def model() -> None:
        pyro.sample("plain", dist.Normal(0.0, 1.0))
        with poutine.mask(mask=torch.tensor([True, True])), pyro.plate("p", 2):
            pyro.sample("all", dist.Normal(0.0, 1.0))

    trace = poutine.trace(model).get_trace()
    assert [warning_of_masked_latent(trace.nodes[name]) for name in ("plain", "all")] == ["", ""]
