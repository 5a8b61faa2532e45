"""Tensors that are the same to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.graphs.same_bits import same_bits

NAN = float("nan")
X = torch.tensor([1.0, NAN, -0.5])


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (X.clone(), True),
        (torch.tensor([1.0, NAN, -0.5000001]), False),
        (torch.tensor([1.0, 2.0, -0.5]), False),
        (X.double(), False),
        (X[None], False),
        (X[:2], False),
    ],
)
def test_type_shape_and_numbers(other: Tensor, same: bool) -> None:
    assert same_bits(X, other) == same_bits(other, X) == same


def test_whole_numbers_and_nothing() -> None:
    assert same_bits(torch.arange(3), torch.arange(3)) and same_bits(X[:0], X[:0])
    assert not same_bits(torch.arange(3), torch.arange(1, 4))
