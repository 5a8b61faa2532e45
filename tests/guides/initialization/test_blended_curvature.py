"""Blends of an averaged curvature with a mean-field fit's against closed forms."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.guides.initialization import blended_curvature as module
from pyro_implicit.guides.initialization.blended_curvature import Blend, blended_curvature
from pyro_implicit.guides.initialization.curvature import mean_curvature
from pyro_implicit.handlers.log_joint import LogJoint

M = 4


def precision_of(seed):
    root = torch.randn(M, M, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.mT + 0.3 * torch.eye(M)


def gaussian(precision):
    return lambda u: -0.5 * u @ precision @ u


def blend_of(precision):
    """That of a Gaussian, whose best mean-field fit has the deviations of its conditionals."""
    scale = precision.diagonal().rsqrt()
    return Blend(gaussian(precision), torch.zeros(M, dtype=torch.float64), scale)


@given(seed=st.integers(0, 999))
def test_the_bound_is_that_of_the_gaussian_with_that_precision(seed):
    truth, guess = precision_of(seed), precision_of(seed + 1000)
    blend = blend_of(truth)
    blend._noise = math.sqrt(M) * torch.eye(M, dtype=torch.float64)  # of covariance 1: no error
    expected = -0.5 * (truth @ torch.linalg.inv(guess)).trace() - 0.5 * torch.logdet(guess)
    torch.testing.assert_close(torch.tensor(blend.bound(guess)).double(), expected)


@given(seed=st.integers(0, 999))
def test_no_blend_is_better_than_the_truth_itself(seed):
    truth = precision_of(seed)
    blend = blend_of(truth)
    blend._noise = math.sqrt(M) * torch.eye(M, dtype=torch.float64)
    assert not blend.is_enough(truth)  # there is nothing to compare with
    best, _ = blend.best(truth)
    torch.testing.assert_close(best, truth)
    assert blend.is_enough(truth)


def test_directions_that_an_average_is_too_flat_in_are_filled():
    truth = torch.diag(torch.tensor([1.0, 2.0, 3.0, 100.0], dtype=torch.float64))
    flat = truth.clone()
    flat[3, 3] = 1e-4
    blend = blend_of(truth)
    best, bound = blend.best(flat)
    assert best[3, 3] > 1.0
    assert bound > blend.bound(flat) + 100


@pytest.mark.long
@given(seed=st.integers(0, 999))
def test_a_worse_average_changes_nothing(seed):
    truth = precision_of(seed)
    blend = blend_of(truth)
    found = blend.best(truth)
    for worse in (1e3 * truth, 1e-3 * truth, truth + torch.eye(M)):
        best, bound = blend.best(worse)
        assert bound >= found[1]
        if bound == found[1]:
            torch.testing.assert_close(best, found[0])
    assert bound == blend.bound(best)


def test_the_mean_field_fit_itself_is_among_the_blends():
    truth = torch.diag(torch.tensor([1.0, 2.0, 3.0, 100.0], dtype=torch.float64))
    blend = blend_of(truth)
    best, _ = blend.best(1e-6 * torch.eye(M, dtype=torch.float64))
    torch.testing.assert_close(best, truth)


def test_a_gain_of_a_hundredth_of_a_nat_a_latent_is_not_level(monkeypatch):
    highest = iter([-1.0, -1.0 + 0.011 * M, -1.0 + 0.02 * M, -1.0 + 0.02 * M])

    def best(self, average):
        self._highest = next(highest)
        return average, self._highest

    monkeypatch.setattr(Blend, "best", best)
    blend = blend_of(torch.eye(M, dtype=torch.float64))
    assert [blend.is_enough(torch.eye(M)) for _ in range(4)] == [False, False, True, True]


def test_where_no_blend_has_a_bound_the_average_stays():
    blend = Blend(lambda u: u.sum() * math.nan, torch.zeros(M), torch.ones(M))
    average = torch.eye(M)
    assert blend.best(average) == (average, -math.inf)
    assert not blend.is_enough(average) and not blend.is_enough(average)


def test_a_matrix_without_a_cholesky_root_has_no_bound():
    blend = blend_of(precision_of(0))
    assert blend.bound(-torch.eye(M, dtype=torch.float64)) == -math.inf


def cubic():
    """Its curvature is odd in the latents but for the prior's."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))
    pyro.factor("bent", 0.05 * w[0] ** 3)


def test_what_is_odd_in_the_distance_cancels_in_a_pair():
    density = LogJoint(cubic, HyperNetworkGuide(cubic, init_from=None).setup().sites, (), {})
    mean, scale = torch.zeros(2).double(), torch.full((2,), 0.3, dtype=torch.float64)
    found = mean_curvature(density, mean, scale, 2)
    torch.testing.assert_close(found, torch.eye(2).double())


def test_the_average_is_told_after_each_pair_until_it_is_enough():
    density = LogJoint(cubic, HyperNetworkGuide(cubic, init_from=None).setup().sites, (), {})
    told = []

    def is_enough(average):
        told.append(average)
        return len(told) == 2

    mean, scale = torch.zeros(2).double(), torch.full((2,), 0.3, dtype=torch.float64)
    found = mean_curvature(density, mean, scale, 12, is_enough=is_enough)
    assert len(told) == 2
    torch.testing.assert_close(found, told[1])


def saddle():
    """Its curvature is [[100, -30], [-30, 1]], of which one eigenvalue is negative."""
    a, b = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1e3).to_event(1))
    pyro.factor("bent", -50 * a**2 + 30 * a * b - 0.5 * b**2)


def test_eigenvalues_are_clamped_in_the_units_given():
    density = LogJoint(saddle, HyperNetworkGuide(saddle, init_from=None).setup().sites, (), {})
    unit = torch.tensor([0.1, 1.0], dtype=torch.float64)
    none = torch.zeros(2).double()
    found = mean_curvature(density, none, none, 1, gauss_newton=False, unit=unit)
    # in these units it is [[1, -3], [-3, 1]] but for the flat prior: eigenvalues 4 and -2
    in_units = found * unit * unit[:, None]
    expected = torch.tensor([[2.0, -2.0], [-2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(in_units, expected, rtol=1e-4, atol=1e-4)


def bent():
    """Curvatures that differ from draw to draw."""
    w = pyro.sample("w", dist.Normal(torch.zeros(3).double(), 1.0).to_event(1))
    pyro.factor("bent", -(w**4).sum() - w[0] * w[1])


def bent_density():
    return LogJoint(bent, HyperNetworkGuide(bent, init_from=None).setup().sites, (), {})


@pytest.mark.long
def test_all_draws_are_taken_where_they_are_cheap_and_else_until_the_bound_is_level(monkeypatch):
    mean, scale = torch.zeros(3).double(), torch.full((3,), 0.3, dtype=torch.float64)
    monkeypatch.setattr(Blend, "is_enough", lambda self, average: True)
    assert blended_curvature(bent_density(), mean, scale, 12)[1] == 12
    monkeypatch.setattr(module, "MAX_LATENTS_FOR_ALL_DRAWS", 2)
    assert blended_curvature(bent_density(), mean, scale, 12)[1] == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_the_blend_is_the_best_of_the_averages_along_the_way(seed):
    mean, scale = torch.zeros(3).double(), torch.full((3,), 0.3, dtype=torch.float64)
    density, averages = bent_density(), []
    options = {"unit": scale, "is_enough": lambda average: averages.append(average) or False}
    torch.manual_seed(seed)
    mean_curvature(density, mean, scale, 8, **options)
    torch.manual_seed(seed)
    found, used = blended_curvature(density, mean, scale, 8)
    bounds = [Blend(density.value, mean, scale).best(average)[1] for average in averages]
    assert used == 8 and len(bounds) == 4
    assert Blend(density.value, mean, scale).bound(found) == max(bounds)
