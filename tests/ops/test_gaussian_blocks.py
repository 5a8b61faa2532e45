"""Conditionals of blocks, against those of the dense Gaussian."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.ops.gaussian_blocks import Blocks, FullBlocks, LowRankBlocks

CUTS = [slice(0, 2), slice(2, 3), slice(3, 7)]


def dense(covariance: Tensor, u: Tensor, known: int, rows: slice) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a block given the entries before ``known``, by Schur complement."""
    gain = covariance[rows, :known] @ torch.linalg.inv(covariance[:known, :known])
    return u[..., :known] @ gain.mT, covariance[rows, rows] - gain @ covariance[:known, rows]


@pytest.mark.long
@pytest.mark.parametrize("full", [True, False])
@given(seed=st.integers(0, 1000), batch=st.sampled_from([(), (3,), (2, 1)]))
def test_conditionals_are_those_of_the_dense_gaussian(
    full: bool, seed: int, batch: tuple[int, ...]
) -> None:
    torch.manual_seed(seed)
    factor, scale = torch.randn(7, 3).double(), 0.3 + torch.rand(7).double()
    covariance = factor @ factor.mT + torch.diag(scale.square())
    u = torch.randn(*batch, 7).double()
    blocks: Blocks = LowRankBlocks(factor, scale)
    if full:
        blocks = FullBlocks(torch.linalg.cholesky(covariance))
    for rows in CUTS:
        shift, root = blocks.conditional(rows)
        mean, expected = dense(covariance, u, rows.start, rows)
        found = root @ root.mT
        if not full:
            found = found + torch.diag(scale[rows].square())
        torch.testing.assert_close(found, expected)
        assert (shift is None) == (rows.start == 0)
        if shift is not None:
            torch.testing.assert_close(shift, mean)
        blocks.observe(rows, u[..., rows])
