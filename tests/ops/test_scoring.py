"""Scores of draws against brute force over pairs, and what is exact for any distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyro_implicit.ops.scoring import central_interval, crps_of_sorted, mean_and_error


@given(count=st.integers(2, 12), shift=st.floats(-3.0, 3.0))
def test_crps_is_that_over_all_pairs(count, shift):
    draws = torch.randn(count, 3, dtype=torch.float64) + shift
    pairs = (draws[:, None] - draws).abs().sum((0, 1)) / (count * (count - 1))
    expected = draws.abs().mean(0) - pairs / 2
    torch.testing.assert_close(crps_of_sorted(draws.sort(0).values), expected)


def test_crps_has_no_bias_with_few_draws():
    """Of a standard normal at 0.7: z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)."""
    z = 0.7
    exact = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    found = crps_of_sorted((torch.randn(3, 200_000, dtype=torch.float64) - z).sort(0).values)
    error = float(found.std()) / math.sqrt(len(found))
    assert float(found.mean()) == pytest.approx(exact, abs=4 * error)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("count", [19, 40])
def test_the_next_draw_lies_in_the_interval_as_often_as_asked(level, count):
    draws = torch.rand(count + 1, 100_000, dtype=torch.float64)
    low, high = central_interval(draws[1:].sort(0).values, level)
    inside = ((low <= draws[0]) & (draws[0] <= high)).double().mean()
    assert float(inside) == pytest.approx(level, abs=0.005)


def test_whole_intervals_end_at_draws_and_are_no_smaller():
    draws = torch.randn(30, 4).sort(0).values
    low, high = central_interval(draws, 0.83)
    outer_low, outer_high = central_interval(draws, 0.83, whole=True)
    assert bool((outer_low <= low).all() and (high <= outer_high).all())
    assert bool((draws == outer_low).any(0).all())


@pytest.mark.long
@given(counts=st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_the_error_of_a_mean_over_rows(counts):
    """For rows of one datum that of scipy; else the ratio estimator, term by term."""
    values = torch.randn(sum(counts)).double()
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    mean, error = mean_and_error(values, rows)
    residuals = [(values[rows == r] - values.mean()).sum().item() for r in range(len(counts))]
    n = len(counts)
    expected = math.sqrt(n / (n - 1) * sum(r**2 for r in residuals)) / sum(counts)
    assert mean == pytest.approx(values.mean().item()) and error == pytest.approx(expected)
    _, each = mean_and_error(values, torch.arange(len(values)))
    assert each == pytest.approx(stats.sem(values.numpy()))


def test_the_error_is_the_spread_of_means_of_other_rows():
    """Rows of three data that share most of their noise: by simulation."""
    generator = np.random.default_rng(0)
    means, errors = [], []
    rows = torch.arange(40).repeat_interleave(3)
    for _ in range(500):
        shared = generator.normal(size=40).repeat(3)
        mean, error = mean_and_error(torch.from_numpy(shared + generator.normal(size=120)), rows)
        means.append(mean)
        errors.append(error**2)
    assert np.mean(errors) == pytest.approx(np.var(means), rel=0.15)


def test_one_row_has_no_error():
    mean, error = mean_and_error(torch.tensor([1.0, 3.0]), torch.tensor([7, 7]))
    assert mean == 2.0 and math.isnan(error)
