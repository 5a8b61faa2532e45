"""Standardised draws: their moments, and the entropy of the Gaussian they are compared with."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.ops.moments import standardise

KINDS = ("diagonal", "full")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_standardised_draws_have_mean_zero_and_unit_covariance(dtype: torch.dtype) -> None:
    draws = (torch.randn(30, 4) @ torch.randn(4, 4) + 100).to(dtype)
    u, entropy = standardise(draws, "full")
    assert u.dtype == entropy.dtype == dtype and entropy.shape == ()
    torch.testing.assert_close(u.mean(0), torch.zeros(4, dtype=dtype), atol=1e-4, rtol=0)
    torch.testing.assert_close(u.mT.cov(), torch.eye(4, dtype=dtype), atol=1e-4, rtol=0)


def test_diagonal_standardised_draws_have_unit_variances_and_keep_their_correlation() -> None:
    draws = torch.randn(30, 4).double() @ torch.randn(4, 4).double() + 5
    u, _ = standardise(draws)
    torch.testing.assert_close(u.mean(0), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(u.mT.cov(), draws.mT.corrcoef())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_entropy_is_unbiased_for_gaussian_draws(kind: str) -> None:
    m, n, repeats = 5, 8, 2000  # few draws, so that what is corrected is much
    factor = (
        torch.randn(m, m).double() if kind == "full" else torch.rand(m).add(0.1).diag().double()
    )
    exact = 0.5 * m * (1 + math.log(2 * math.pi)) + torch.linalg.slogdet(factor).logabsdet.item()
    found = torch.stack(
        [standardise(torch.randn(n, m).double() @ factor.mT, kind)[1] for _ in range(repeats)]
    )
    error = found.std().item() / math.sqrt(repeats)
    assert error < 0.02
    assert abs(found.mean().item() - exact) < 4 * error


@settings(max_examples=30)
@given(st.sampled_from(KINDS), st.integers(1, 5), st.integers(0, 2**20))
def test_an_affine_map_moves_the_entropy_by_its_determinant_and_not_the_draws(
    kind: str, m: int, seed: int
) -> None:
    torch.manual_seed(seed)
    draws = torch.randn(m + 4, m).double()
    if kind == "full":
        # lower triangular with a positive diagonal: a Cholesky factor is unique
        factor = torch.randn(m, m).double().tril(-1) + (torch.rand(m).double() + 0.1).diag()
    else:
        factor = (torch.rand(m).double() + 0.1).diag()
    u, entropy = standardise(draws, kind)
    moved, after = standardise(draws @ factor.mT + torch.randn(m).double(), kind)
    torch.testing.assert_close(moved, u, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(after, entropy + factor.diagonal().log().sum(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_both_results_are_differentiable(kind: str) -> None:
    draws = torch.randn(8, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: standardise(x, kind), (draws,))


def test_draws_without_spread_stay_finite() -> None:
    u, entropy = standardise(torch.ones(5, 2))
    assert u.isfinite().all() and entropy.isfinite() and entropy < -100


def test_refused() -> None:
    with pytest.raises(ArgumentError, match="covariance='banded'; expected 'diagonal' or 'full'"):
        standardise(torch.randn(5, 2), "banded")
    with pytest.raises(ShapeError, match="1 draws of 3 entries; a diagonal.*at least 2"):
        standardise(torch.randn(1, 3))
    with pytest.raises(ShapeError, match="3 draws of 3 entries; a full.*at least 4"):
        standardise(torch.randn(3, 3), "full")
    assert standardise(torch.randn(4, 3), "full")[0].isfinite().all()


def test_draws_on_a_surface_have_no_full_covariance() -> None:
    flat = torch.randn(20, 1) * torch.tensor([1.0, 2.0, 0.0])
    with pytest.raises(NonFiniteError, match="lie on a surface"):
        standardise(flat, "full")
