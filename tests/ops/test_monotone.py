"""Increasing functions made of steps: value, slope and inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops.monotone import Steps


@pytest.mark.long
@given(st.integers(0, 2**31), st.integers(0, 4), st.sampled_from([1.0, 5.0, 30.0]))
def test_the_inverse_leads_back_and_the_slope_is_the_derivative(
    seed: int, num_steps: int, steepest: float
) -> None:
    torch.manual_seed(seed)
    shape = (num_steps, 50)
    steps = Steps(
        3 * torch.rand(shape, dtype=torch.float64),
        5 * torch.randn(shape, dtype=torch.float64),
        steepest * torch.rand(shape, dtype=torch.float64) + 1e-3,
    )
    y = 10 * torch.randn(50, dtype=torch.float64)
    torch.testing.assert_close(steps.value(steps.inverse(y)), y, rtol=0, atol=1e-12)
    z = y.clone().requires_grad_()
    value, slope = steps.value_and_slope(z)
    torch.testing.assert_close(value, steps.value(z))
    torch.testing.assert_close(slope, torch.autograd.grad(value.sum(), z)[0])


def test_a_steep_step_at_which_newtons_method_goes_to_and_fro() -> None:
    y = torch.linspace(-10, 0, 20_001, dtype=torch.float64)
    steps = Steps(
        *(
            torch.tensor(numbers, dtype=torch.float64)[:, None]
            for numbers in ((2.33, 0.135), (-13.1, -6.39), (1.97, 21.3))
        )
    )
    z = steps.inverse(y)
    torch.testing.assert_close(steps.value(z), y, rtol=0, atol=1e-12)
    one = steps.inverse(y, num_steps=25)  # it needs few
    torch.testing.assert_close(one, z, rtol=0, atol=1e-12)
