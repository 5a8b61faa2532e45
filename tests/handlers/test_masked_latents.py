"""Latents that a mask leaves without a prior are told, and fit promises nothing."""

from __future__ import annotations

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit, refine
from pyro_implicit.handlers.masked_latents import told_of_masked_latent

Y = torch.randn(12)
KNOWN = torch.arange(12) < 9


def with_gaps(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 12):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y, obs_mask=KNOWN)


@pytest.mark.long
def test_fit_promises_nothing_and_refine_tells() -> None:
    with pytest.warns(UserWarning, match="'y_unobserved' is masked in 9 places"):
        result = fit(with_gaps, HyperNetworkGuide(with_gaps), Y, num_steps=2, progress=False)
    assert result.promise == ""
    assert any("is masked in 9 places" in text for text in result.warnings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refine(with_gaps, 2, Y, num_chains=2, num_steps=20, mode_steps=2, progress=False)
    told = [one for one in told if "is masked in 9 places" in str(one.message)]
    assert len(told) == 1 and told[0].filename == __file__


def test_others_are_not_told() -> None:
    def model() -> None:
        pyro.sample("plain", dist.Normal(0.0, 1.0))
        with poutine.mask(mask=torch.tensor([True, True])), pyro.plate("p", 2):
            pyro.sample("all", dist.Normal(0.0, 1.0))

    trace = poutine.trace(model).get_trace()
    assert [told_of_masked_latent(trace.nodes[name]) for name in ("plain", "all")] == ["", ""]
