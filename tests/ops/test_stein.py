"""The Stein kernel against a double loop with autograd, and its mean in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import k0

from pyro_implicit.ops.stein import bootstrap_null, stein_matrix, stein_u_statistic


def brute_force(x, y, score, length, beta):
    """One entry, every derivative by autograd."""

    def kernel(a, b):
        return (1 + (a - b).square().sum() / length**2) ** beta

    over_x, over_y = torch.func.grad(kernel, 0)(x, y), torch.func.grad(kernel, 1)(x, y)
    mixed = torch.func.jacrev(torch.func.grad(kernel, 0), 1)(x, y)
    s_x, s_y = score(x), score(y)
    return kernel(x, y) * (s_x @ s_y) + s_x @ over_y + s_y @ over_x + mixed.trace()


@pytest.mark.long
@settings(max_examples=20)
@given(
    m=st.integers(1, 4), length=st.floats(0.3, 3.0), beta=st.floats(-0.9, -0.1), seed=st.integers(0)
)
def test_the_matrix_is_that_of_a_double_loop(m, length, beta, seed):
    torch.manual_seed(seed % 2**32)
    root = torch.randn(m, m).double()
    precision = root @ root.T + torch.eye(m).double()

    def score(x):
        return -precision @ x + torch.sin(x)

    draws = torch.randn(4, m).double()
    scores = torch.stack([score(x) for x in draws])
    found = stein_matrix(draws, scores, length, beta)
    for i in range(4):
        for j in range(4):
            expected = brute_force(draws[i], draws[j], score, length, beta)
            torch.testing.assert_close(found[i, j], expected, atol=1e-9, rtol=1e-6)


@pytest.mark.long
def test_the_mean_for_a_shifted_gaussian_in_closed_form():
    """For q = N(mu, 1), p = N(0, 1): mu^2 E k(x, y) with x - y from N(0, 2), a Bessel function."""
    mu, n = 0.7, 1500
    draws = mu + torch.randn(n, 1).double()
    matrix = stein_matrix(draws, -draws)
    exact = mu**2 * math.exp(1 / 8) * k0(1 / 8) / math.sqrt(4 * math.pi)
    found = stein_u_statistic(matrix).item()
    spread = 2 * matrix.mean(1).std().item() / n**0.5  # of a U-statistic that is not degenerate
    assert found == pytest.approx(exact, abs=4 * spread)
    assert spread < 0.1 * exact


def test_the_mean_of_the_right_draws_is_zero():
    draws = torch.randn(1000, 2).double()
    matrix = stein_matrix(draws, -draws)
    replicates = bootstrap_null(matrix, 200)
    assert abs(stein_u_statistic(matrix)) < 5 * replicates.std()


@pytest.mark.long
def test_replicates_have_the_spread_of_the_statistic():
    statistics, spreads = [], []
    for _ in range(200):
        draws = torch.randn(100, 1).double()
        matrix = stein_matrix(draws, -draws)
        statistics.append(stein_u_statistic(matrix))
        spreads.append(bootstrap_null(matrix, 100).std())
    assert torch.stack(spreads).mean() / torch.stack(statistics).std() == pytest.approx(1, abs=0.25)


def test_the_u_statistic_leaves_out_the_diagonal():
    matrix = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]])
    assert stein_u_statistic(matrix).item() == pytest.approx(2.0)
