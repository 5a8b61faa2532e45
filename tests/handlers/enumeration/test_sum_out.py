"""Discrete latents of a plate: summed out within it, and refused outside; against all values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit, refine
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.log_joint import LogJoint

ENUMERATE = {"enumerate": "parallel", "expand": True}
Model = Callable[..., Any]


def log_joint(model: Model, u: Tensor, *args: Any) -> Tensor:
    guide = HyperNetworkGuide(model, init_from=None, init_scale=0.1).setup(*args)
    return LogJoint(model, guide.sites, args, {})(u)


def by_all_values(u: Tensor, group: Tensor, y: Tensor, number: int) -> Tensor:
    """The log-density of m and the data, with every combination of the groups' choices."""
    total = []
    for values in itertools.product([0.0, 1.0], repeat=number):
        mean = u * torch.tensor(values)[group]
        prior = number * torch.tensor(0.5).log()
        total.append(prior + dist.Normal(mean, 1.0).log_prob(y).sum())
    return dist.Normal(0.0, 1.0).log_prob(u).sum() + torch.stack(total).logsumexp(0)


def indexed(group: Tensor, y: Tensor) -> None:
    """Rows look up the choice of their group: outside of the plate of the groups."""
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 3):
        z = pyro.sample("z", dist.Bernoulli(0.5), infer=ENUMERATE)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(m * z[..., group], 1.0), obs=y)


def two_names_of_one_plate(group: Tensor, y: Tensor) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("first", len(y)):
        z = pyro.sample("z", dist.Bernoulli(0.5), infer=ENUMERATE)
    with pyro.plate("second", len(y)):
        pyro.sample("y", dist.Normal(m * z, 1.0), obs=y)


def summed(group: Tensor, y: Tensor) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("parts", 3):
        z = pyro.sample("z", dist.Bernoulli(0.5), infer=ENUMERATE)
    pyro.sample("y", dist.Normal(m * z.sum(-1, keepdim=True), 1.0), obs=y[:1])


def in_a_loop(group: Tensor, y: Tensor) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    for i in pyro.plate("groups", 3):
        z = pyro.sample(f"z_{i}", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        of_group = y[group == i]
        with pyro.plate(f"rows_{i}", len(of_group)):
            pyro.sample(f"y_{i}", dist.Normal((m * z)[..., None].squeeze(-1), 1.0), obs=of_group)


def all_combinations(group: Tensor, y: Tensor) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    z = []
    for i in pyro.plate("groups", 3):
        z.append(pyro.sample(f"z_{i}", dist.Bernoulli(0.5), infer={"enumerate": "parallel"}))
    with pyro.plate("rows", len(y)):
        chosen = sum(one * (group == i) for i, one in enumerate(z))
        pyro.sample("y", dist.Normal(m * chosen, 1.0), obs=y)


def padded(group: Tensor, y: Tensor) -> None:
    """The groups in their plate, with masks where they have fewer data."""
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    here = torch.nn.functional.one_hot(group, 3).bool()
    groups = pyro.plate("groups", 3, dim=-1)
    with groups:
        z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        with pyro.plate("rows", len(y), dim=-2), poutine.mask(mask=here):
            pyro.sample("y", dist.Normal(m * z, 1.0), obs=y[:, None])


def one_plate_twice(group: Tensor, y: Tensor) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    rows = pyro.plate("rows", len(y))
    with rows:
        z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    with rows:
        pyro.sample("y", dist.Normal(m * z, 1.0), obs=y)


GROUP = torch.tensor([0, 1, 2, 0, 1])
Y = torch.tensor([0.3, 1.9, -0.4, 0.1, 2.2])


@pytest.mark.parametrize(
    ("model", "site", "plate"),
    [
        (indexed, "y", "groups"),
        (two_names_of_one_plate, "y", "first"),
        (summed, "y", "parts"),
    ],
)
def test_what_depends_on_a_plate_of_latents_from_outside_is_refused(
    model: Model, site: str, plate: str
) -> None:
    """Pyro's contraction gives one value to all rows of the plate there (61.1 for 89.6 nats)."""
    told = (
        rf"site '{site}' depends on 'z', which is summed out.*rows of plate '{plate}'; 'y' is not"
    )
    with pytest.raises(SiteError, match=told):
        log_joint(model, torch.zeros(1), GROUP, Y)
    with pytest.raises(SiteError, match=told):
        LinearisedELBO(2).loss(model, HyperNetworkGuide(model, init_from=None), GROUP, Y)


@pytest.mark.long
def test_fits_and_chains_refuse_it_too() -> None:
    with pytest.raises(SiteError, match="no probability of it"):
        fit(indexed, HyperNetworkGuide(indexed), GROUP, Y, num_steps=5, progress=False)
    with pytest.raises(SiteError, match="no probability of it"):
        refine(indexed, 2, GROUP, Y, num_steps=5, kernel="hmc", progress=False)


@pytest.mark.parametrize("model", [in_a_loop, all_combinations, padded])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_the_error_says_to_write_is_the_sum_over_all_values(
    model: Model, data: st.DataObject
) -> None:
    u = torch.tensor([data.draw(st.floats(-3.0, 3.0))])
    number = data.draw(st.integers(3, 7))
    rest = data.draw(st.lists(st.integers(0, 2), min_size=number - 3, max_size=number - 3))
    group = torch.tensor([0, 1, 2, *rest])
    y = torch.tensor(data.draw(st.lists(st.floats(-3, 3), min_size=number, max_size=number)))
    expected = by_all_values(u, group, y, 3)
    torch.testing.assert_close(log_joint(model, u, group, y), expected, rtol=1e-5, atol=1e-5)


def test_one_plate_entered_twice_is_one() -> None:
    u = torch.tensor([0.7])
    expected = by_all_values(u, torch.arange(5), Y, 5)
    found = log_joint(one_plate_twice, u, GROUP, Y)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_plate_of_one_row_is_as_good_as_none() -> None:
    def model(group: Tensor, y: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 1):
            z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(m * z, 1.0), obs=y)

    u = torch.tensor([0.7])
    expected = by_all_values(u, torch.zeros(5, dtype=torch.long), Y, 1)
    torch.testing.assert_close(log_joint(model, u, GROUP, Y), expected, rtol=1e-5, atol=1e-5)


def test_pyros_own_objective_is_kept_from_it_too() -> None:
    guide = AutoNormal(poutine.block(indexed, expose=["m"]))
    with pytest.raises(SiteError, match="no probability of it"):
        fit(indexed, guide, GROUP, Y, num_steps=2, progress=False)


def test_a_sum_over_numbers_of_two_precisions_is_that_of_the_finer() -> None:
    """Data in double precision beside probabilities in single one."""
    group, y = torch.tensor([0, 0, 1]), torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)

    def mixed(group: Tensor, y: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.5)), infer=ENUMERATE)
            pyro.sample("y", dist.Normal(m * z, 1.0), obs=y)

    u = torch.tensor([0.7])
    found = log_joint(mixed, u, group, y)
    rows = torch.stack([dist.Normal(u * k, 1.0).log_prob(y) for k in (0.0, 1.0)]).logsumexp(0)
    expected = dist.Normal(0.0, 1.0).log_prob(u).sum() + (rows + torch.tensor(0.5).log()).sum()
    assert torch.allclose(found.double(), expected.double(), atol=1e-5)
    guide = HyperNetworkGuide(poutine.block(mixed, hide=["z"]), init_from=None)
    assert LinearisedELBO(2).loss(mixed, guide, group, y) < float("inf")
