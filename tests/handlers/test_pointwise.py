"""The runner behind to_arviz: pointwise log-probabilities, fixed and re-drawn sites, no traces."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from pyro.distributions import constraints

from pyro_implicit.handlers.pointwise import counted, is_delta, pointwise_log_prob, run_model
from pyro_implicit.handlers.wrapped import base_distribution


def log_prob_of(model, name="y"):
    found = {}

    def visit(site):
        if site["name"] == name:
            found[name] = pointwise_log_prob(site)

    run_model(model, (), {}, visit)
    return found[name]


@pytest.mark.long
@given(
    rows=st.integers(1, 4), groups=st.integers(2, 3), events=st.integers(1, 3), seed=st.integers(0)
)
def test_event_dims_are_summed_and_plates_kept(rows, groups, events, seed):
    torch.manual_seed(seed % 2**32)
    y = torch.randn(groups, rows, events, dtype=torch.float64)
    loc = torch.randn(groups, rows, events, dtype=torch.float64)

    def model():
        with pyro.plate("groups", groups, dim=-2), pyro.plate("rows", 7 * rows, rows, dim=-1):
            pyro.sample("y", dist.Normal(loc, 2.0).to_event(1), obs=y)

    expected = torch.distributions.Normal(loc, 2.0).log_prob(y).sum(-1)
    assert torch.allclose(log_prob_of(model), expected, rtol=1e-12)


def test_scale_is_left_out_and_mask_applied():
    y = torch.tensor([0.0, 1.0, 2.0])

    @poutine.scale(scale=10.0)
    @poutine.mask(mask=torch.tensor([True, False, True]))
    def model():
        with pyro.plate("data", 30, subsample_size=3):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    expected = torch.distributions.Normal(0.0, 1.0).log_prob(y) * torch.tensor([1.0, 0.0, 1.0])
    assert torch.allclose(log_prob_of(model), expected)


def test_batch_dims_outside_of_plates_are_summed_but_for_those_of_size_1():
    y = torch.randn(4, 3, 1, 2)

    def model():
        with pyro.plate("a", 4, dim=-4), pyro.plate("b", 2, dim=-1):
            pyro.sample("y", dist.Normal(0.0, 1.0).expand([4, 3, 1, 2]), obs=y)

    expected = torch.distributions.Normal(0.0, 1.0).log_prob(y).sum(1)
    assert log_prob_of(model).shape == (4, 1, 2)
    assert torch.allclose(log_prob_of(model), expected)


def test_one_value_for_all_of_a_plate_counts_for_each():
    def model():
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))

    assert log_prob_of(model).shape == (3,)


def test_fixed_sites_are_never_drawn():
    def model():
        mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        pyro.sample("y", dist.Normal(mu, 1.0), obs=torch.tensor(1.0))

    seen = {}
    run_model(
        model,
        (),
        {},
        lambda site: seen.update({site["name"]: site["value"]}),
        values={"mu": torch.tensor(3.0)},
    )
    assert seen == {"mu": 3.0, "y": 1.0}


def test_unobserved_sites_are_drawn_and_others_stay():
    y = torch.zeros(5)

    def model():
        with pyro.plate("data", 5):
            mean = pyro.deterministic("mean", torch.arange(5.0))
            pyro.factor("penalty", torch.ones(5))
            pyro.sample("y", dist.Normal(mean, 1e-3), obs=y)
        pyro.sample("z", dist.Normal(0.0, 1.0), obs=torch.tensor(7.0))

    seen = {}
    run_model(
        model, (), {}, lambda site: seen.update({site["name"]: site["value"]}), unobserve=["y"]
    )
    assert torch.allclose(seen["y"], torch.arange(5.0), atol=0.02)
    assert seen["mean"].shape == (5,) and seen["penalty"].shape == (5, 0) and seen["z"] == 7.0


def test_no_gradient_is_recorded():
    weight = torch.nn.Parameter(torch.tensor(1.0))

    def model():
        pyro.sample("y", dist.Normal(weight, 1.0), obs=torch.tensor(0.0))

    assert not log_prob_of(model).requires_grad


@pytest.mark.parametrize(
    ("fn", "delta"),
    [
        (dist.Delta(torch.zeros(2)).to_event(1).mask(False), True),
        (dist.Delta(torch.zeros(2)).expand([3, 2]), True),
        (dist.Normal(torch.zeros(2), 1.0).to_event(1), False),
    ],
)
def test_point_masses_are_seen_through_wrappers(fn, delta):
    assert is_delta({"fn": fn}) is delta
    assert isinstance(base_distribution(fn), dist.Delta) is delta


def test_flags_of_a_mask_that_is_wider_than_its_site_keep_its_dimensions() -> None:
    mask = torch.tensor([[False] * 3, [True, True, False]])  # two values of a latent, three rows
    for fn in (dist.Normal(0.0, 1.0).expand([3]), dist.Normal(torch.zeros(3, 2), 1.0).to_event(1)):

        def model(fn: Any = fn) -> None:
            with pyro.plate("data", 3), poutine.mask(mask=mask):
                pyro.sample("y", fn, obs=torch.zeros(fn.batch_shape + fn.event_shape))

        site = poutine.trace(model).get_trace().nodes["y"]
        assert torch.equal(counted(site), mask)
