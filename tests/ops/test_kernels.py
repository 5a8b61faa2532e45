"""Kernels against explicit differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops import kernels
from pyro_implicit.ops.kernels import (
    gaussian_kernel,
    median_distance,
    squared_distances,
    typical_distance,
)
from pyro_implicit.ops.largest_tensor import LargestTensor


@pytest.mark.parametrize("shape", [(7, 5, 3), (1, 1, 1), (4, 1, 200)])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_squared_distances_are_those_of_differences_also_far_from_the_origin(
    shape: tuple[int, int, int], offset: float
) -> None:
    n, k, m = shape
    x = torch.randn(n, m).double() + offset
    y = torch.randn(k, m).double() + offset
    found = squared_distances(x, y)
    expected = (x[:, None] - y).square().sum(-1)
    assert found.shape == (n, k) and (found >= 0).all()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_many_columns_are_summed_in_blocks(
    dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(3, 23) + 100, torch.randn(4, 23) + 100
    x.requires_grad_()
    monkeypatch.setattr(kernels, "_ENTRIES_OF_A_BLOCK", 7 * 5)  # four blocks of 5 columns, one of 3
    found = squared_distances(x, y, dtype)
    expected = (x.double()[:, None] - y.double()).square().sum(-1)
    assert found.dtype == (dtype or torch.float32)
    near = {"rtol": 1e-12, "atol": 1e-12} if dtype else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found, expected.to(found), **near)
    weights = torch.randn(3, 4)
    mine, theirs = (
        torch.autograd.grad((weights.to(square) * square).sum(), x)[0]
        for square in (found, expected)
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_neither_points_nor_their_differences_are_copied_whole() -> None:
    x, y = torch.randn(4, 300_000), torch.randn(4, 300_000)
    with LargestTensor() as watch:
        squared_distances(x, y, torch.float64)
    assert watch.numel <= 2**18


def test_float32_far_from_the_origin() -> None:
    x, y = torch.rand(20, 3) + 1000, torch.rand(10, 3) + 1000
    expected = (x[:, None] - y).square().sum(-1)
    torch.testing.assert_close(squared_distances(x, y), expected, rtol=1e-3, atol=1e-4)


def test_a_point_is_at_no_distance_from_itself() -> None:
    x = torch.randn(50, 10)
    assert squared_distances(x, x).diagonal().max() < 1e-4


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_are_those_of_differences_for_both_arguments(shared: bool) -> None:
    x = torch.randn(6, 3).double().requires_grad_()
    y = x if shared else torch.randn(4, 3).double().requires_grad_()
    weights = torch.randn(6, len(y)).double()
    wrt = [x] if shared else [x, y]
    found = torch.autograd.grad((weights * squared_distances(x, y)).sum(), wrt)
    explicit = (weights * (x[:, None] - y).square().sum(-1)).sum()
    expected = torch.autograd.grad(explicit, wrt)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("bandwidth", [0.7, torch.tensor(0.7).double(), torch.rand(4).double() + 1])
def test_gaussian_kernel(bandwidth: float | torch.Tensor) -> None:
    x, y = torch.randn(5, 2).double(), torch.randn(4, 2).double()
    widths = torch.as_tensor(bandwidth).double().expand(4)
    square = [[math.dist(a.tolist(), b.tolist()) ** 2 for b in y] for a in x]
    expected = [[math.exp(-s / (2 * h.item() ** 2)) for s, h in zip(row, widths, strict=True)]
                for row in square]  # fmt: skip
    torch.testing.assert_close(gaussian_kernel(x, y, bandwidth), torch.tensor(expected).double())


@pytest.mark.parametrize("sizes", [(6, 5), (5, 5), (1, 3)])
def test_median_distance_is_numpys(sizes: tuple[int, int]) -> None:
    x, y = torch.randn(sizes[0], 3).double(), torch.randn(sizes[1], 3).double()
    explicit = np.linalg.norm(x.numpy()[:, None] - y.numpy(), axis=-1).reshape(-1)
    expected = np.quantile(explicit, 0.5, method="lower")  # as torch: of two, the lower
    assert median_distance(x, y).item() == pytest.approx(expected)


def test_median_distance_leaves_out_points_that_are_the_same() -> None:
    x = torch.randn(9, 4)
    explicit = np.linalg.norm(x.numpy()[:, None] - x.numpy(), axis=-1)
    apart = explicit[~np.eye(9, dtype=bool)]
    expected = np.quantile(apart, 0.5, method="lower")
    assert median_distance(x, x).item() == pytest.approx(expected, rel=1e-5)
    assert median_distance(torch.ones(4, 2), torch.ones(3, 2)).item() == 1
    assert not median_distance(x.requires_grad_(), x).requires_grad


@given(exponent=st.floats(-15, 15), offset=st.sampled_from([0.0, 1.0]))
def test_median_distance_has_the_units_of_the_points(exponent: float, offset: float) -> None:
    scale = 10.0**exponent
    x, y = torch.linspace(-1, 1, 14).reshape(7, 2) ** 3, torch.linspace(0, 2, 10).reshape(5, 2)
    expected = scale * median_distance(x, y).item()
    found = median_distance(scale * (x + offset), scale * (y + offset)).item()
    assert found == pytest.approx(expected, rel=1e-3)


def test_points_that_are_the_same_are_so_wherever_they_are() -> None:
    assert median_distance(torch.full((4, 2), 0.1), torch.full((3, 2), 0.1)).item() == 1
    assert median_distance(torch.full((4, 2), 1e5 / 3), torch.full((3, 2), 1e5 / 3)).item() == 1


def test_typical_distance_leaves_out_rounding() -> None:
    squares = torch.tensor([[0.0, 1e-17, 4.0], [1.0, 9.0, 16.0]], dtype=torch.float64)
    assert typical_distance(squares).item() == 2  # of 1, 4, 9 and 16 the lower middle
    assert typical_distance(torch.zeros(2, 3)).item() == 1
