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


def test_latents_of_rows_go_by_their_numbers() -> None:
    """As in ``predict``: a plate may show its rows in any order, or a few of them."""

    def model(rows):
        with pyro.plate("rows", 6, subsample=rows):
            z = pyro.sample("z", dist.Normal(0.0, 5.0))
            pyro.sample("y", dist.Normal(z, 1.0))

    z = torch.randn(2, 3, 6)
    for rows in (torch.randperm(6), torch.tensor([4, 1])):
        found = expectations(model, {"z": z}, (rows,), {}, None)
        assert torch.equal(found["y"], z[..., rows])


@pytest.mark.parametrize("plate_size", [None, 3])
def test_what_each_run_draws_anew_is_refused(plate_size) -> None:
    """Its noise would hide that chains differ, and would be moved by each call."""

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 6, subsample_size=plate_size) as rows:
            k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            shift = k if plate_size is None else rows.to(w)
            pyro.sample("y", dist.Normal(w + 9 * shift, 1.0))
            pyro.deterministic("mean", w + torch.zeros(len(rows)))

    draws, before = {"w": torch.randn(1, 4)}, torch.get_rng_state()
    with pytest.raises(SiteError, match="'y' has another expectation at each run"):
        expectations(model, draws, (), {}, None)
    found = expectations(model, draws, (), {}, ["mean"])
    assert torch.equal(found["mean"], draws["w"][..., None].expand(1, 4, plate_size or 6))
    assert torch.equal(torch.get_rng_state(), before)
