from __future__ import annotations

import pytest
import torch

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.ops.activations import ACTIVATIONS, get_activation


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slope_is_the_derivative(name: str) -> None:
    function, slope = get_activation(name)
    x = torch.linspace(-6, 6, 50, dtype=torch.float64, requires_grad=True)  # no entry is 0
    (derivative,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(slope(x.detach()), derivative)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slope_can_be_differentiated(name: str) -> None:
    _, slope = get_activation(name)
    x = torch.linspace(-2, 2, 10, dtype=torch.float64, requires_grad=True)
    value = slope(x)
    if value.requires_grad:
        assert torch.autograd.gradcheck(slope, (x,))
    else:  # piecewise linear: the slope is constant
        assert name in ("identity", "leaky_relu", "relu")


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slope_stays_finite_far_out(name: str) -> None:
    _, slope = get_activation(name)
    x = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], requires_grad=True)
    value = slope(x)
    assert value.isfinite().all() and value.dtype == x.dtype
    if value.requires_grad:
        value.sum().backward()
        assert x.grad is not None and x.grad.isfinite().all()


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'swish' is unknown.*'silu'.*your own generator"):
        get_activation("swish")
