"""Draws that the prior of the model would never make are told; those at its edge are not."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints

from pyro_implicit import HyperNetworkGuide, evaluate, log_predictive_density, predict, to_arviz
from pyro_implicit.inference.outside_support import _beside, is_outside

X, Y = torch.linspace(0.0, 1.0, 5), torch.zeros(5)
OUTSIDE = r"draws 'w' outside GreaterThan\(lower_bound=0\.0\)"


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def rising(x, y=None):
    w = pyro.sample("w", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def guide_of(model):
    guide = HyperNetworkGuide(model, init_from=None)
    guide(X, Y)
    return guide


@pytest.mark.long
def test_the_guide_of_a_model_with_another_support_is_told():
    guide = guide_of(line)
    with pytest.warns(UserWarning, match=OUTSIDE):
        predict(rising, guide, X, num_samples=50)
    with pytest.warns(UserWarning, match=OUTSIDE):
        evaluate(rising, guide, X, Y, num_samples=50)
    with pytest.warns(UserWarning, match=OUTSIDE):
        log_predictive_density(rising, guide, X, Y, num_samples=50)
    with pytest.warns(UserWarning, match=OUTSIDE):
        to_arviz(rising, guide, X, Y, num_samples=50, groups=["posterior"])


@pytest.mark.long
def test_draws_within_the_support_are_not():
    guide = guide_of(rising)
    for model in (rising, line):
        predict(model, guide, X, num_samples=50)
        evaluate(model, guide, X, Y, num_samples=50)
        log_predictive_density(model, guide, X, Y, num_samples=50)
        to_arviz(model, guide, X, Y, num_samples=50)


def test_a_draw_at_the_edge_is_rounding():
    values = torch.rand(1000)
    values[0] = 0.0
    assert not is_outside(dist.Gamma(1.0, 1.0), values - 1e-9)
    values[:20] = -1.0
    assert is_outside(dist.Gamma(1.0, 1.0), values)
    values[3] = torch.nan  # which others tell
    assert not is_outside(dist.Gamma(1.0, 1.0), values)


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (dist.Uniform(torch.zeros(4), torch.ones(4)), (10, 3)),  # rows of a plate that is cut
        (dist.Delta(torch.zeros(4)), (10, 3)),
        (dist.Empirical(torch.zeros(2), torch.zeros(2)), (10,)),
    ],
)
def test_where_it_cannot_be_told_nothing_is(fn, shape):
    assert not is_outside(fn, torch.rand(shape))


def test_values_are_compared_on_the_device_of_the_bounds() -> None:
    bounds = torch.zeros(3, device="meta"), torch.ones(3, device="meta")
    support = constraints.independent(constraints.interval(*bounds), 1)
    assert _beside(torch.zeros(3), support).device.type == "meta"
    assert _beside(torch.zeros(3), constraints.positive).device.type == "cpu"
