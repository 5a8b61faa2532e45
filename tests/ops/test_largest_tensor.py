"""The largest tensor that operations make, whatever their arguments."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops.largest_tensor import LargestTensor


@given(st.integers(1, 20), st.integers(1, 20))
def test_products(rows: int, columns: int) -> None:
    a, b = torch.ones(rows), torch.ones(columns)
    with LargestTensor() as largest:
        (a[:, None] * b).sum()
    assert largest.numel == rows * columns
    assert largest.total == rows + rows * columns + 1  # a view counts too


def test_several_outputs_none_and_nothing() -> None:
    with LargestTensor() as largest:
        assert largest.numel == 0
        torch.ones(7, 2).max(0)
    assert largest.numel == 14
    assert largest.total == 14 + 2 + 2


def test_shapes_and_numbers_count_for_nothing() -> None:
    values = torch.ones(7, 2)
    with LargestTensor() as largest:
        assert (values.shape, values.dim(), values.dtype) == ((7, 2), 2, torch.float32)
        assert bool(torch.is_tensor(values)) and values.stride() == (2, 1)
        assert values[0, 0].item() == 1.0
    assert largest.total == 1
