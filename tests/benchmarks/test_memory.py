"""The memory of a step against what its tensors take."""

from __future__ import annotations

import pytest
import torch

from benchmarks.shared.memory import peak_bytes


def test_of_two_at_once() -> None:
    x = torch.randn(100, 1000)
    assert peak_bytes(lambda: (2 * x).exp_().sum()) == pytest.approx(400_000, abs=100)


def test_what_is_held_before_does_not_count() -> None:
    held = torch.zeros(1000, 1000)
    assert peak_bytes(lambda: held.add_(1.0)) < 100


def test_what_was_given_back_does_not_count() -> None:
    def step() -> None:
        for _ in range(10):
            torch.zeros(1000, dtype=torch.float64)

    assert peak_bytes(step) == 8000


def test_gradients_and_what_they_need() -> None:
    x = torch.randn(1000, requires_grad=True)
    # exp is kept for its gradient, the product for the sum; then the gradients of both
    assert 8000 <= peak_bytes(lambda: (3 * x).exp().sum().backward()) <= 16_100
