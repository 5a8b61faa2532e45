"""Observations without a density, and those that a distribution of a user's own gives one."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

from pyro_implicit import log_predictive_density
from pyro_implicit.exceptions import NonFiniteError

Y = torch.tensor([1.0, 2.0, math.inf, 0.5, math.inf])


class Cure(dist.TorchDistribution):
    """A time that is exponential, or never comes, with a probability."""

    arg_constraints = {}
    support = constraints.nonnegative

    def __init__(self, never, rate):
        self.never, self.rate = torch.broadcast_tensors(torch.as_tensor(never), torch.tensor(rate))
        super().__init__(self.never.shape, validate_args=False)

    def expand(self, batch_shape, _instance=None):
        return Cure(self.never.expand(batch_shape), float(self.rate.reshape(-1)[0]))

    def sample(self, sample_shape=()):
        times = dist.Exponential(self.rate).sample(sample_shape)
        return torch.where(torch.rand(times.shape) < self.never, math.inf, times)

    def log_prob(self, value):
        is_never = value.isinf()
        time = torch.where(is_never, 1.0, value)
        log_density = (-self.never).log1p() + self.rate.log() - self.rate * time
        return torch.where(is_never, self.never.log(), log_density)


def guide(*_):
    pyro.sample("never", dist.Uniform(0.0, 1.0))


@pytest.mark.parametrize("least", [0.0, 0.5])
def test_infinite_times_that_a_distribution_knows_count_also_where_some_draws_have_none(least):
    def model(y):
        never = pyro.sample("never", dist.Uniform(0.0, 1.0))
        never = torch.where(never > least, never, 0.0)
        with pyro.plate("rows", 5):
            pyro.sample("y", Cure(never, 1.0), obs=y)

    found = log_predictive_density(model, guide, Y, num_samples=4000, seed=0)
    mass = (1 - least**2) / 2  # the mean of never
    expected = torch.where(Y.isinf(), math.log(mass), math.log1p(-mass) - Y)
    torch.testing.assert_close(found, expected, atol=0.08, rtol=0)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_those_of_pyro_know_none(value):
    def model(y):
        loc = pyro.sample("never", dist.Uniform(0.0, 1.0))
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    y = torch.where(Y.isinf(), value, Y)
    with pytest.raises(NonFiniteError, match="site 'y' observes"):
        log_predictive_density(model, guide, y, num_samples=4)
