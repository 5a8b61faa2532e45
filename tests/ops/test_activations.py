from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.ops.activations import (
    _MIN_ENTRIES_FOR_FAST_EXP,
    ACTIVATIONS,
    get_activation,
    value_and_slope,
)


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


@pytest.mark.parametrize("num", [20, _MIN_ENTRIES_FOR_FAST_EXP])
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_together_they_are_the_same(name: str, num: int) -> None:
    """Values, and gradients of both."""
    x = torch.linspace(-6, 6, num, dtype=torch.float64, requires_grad=True)
    apart = tuple(function(x) for function in get_activation(name))
    together = value_and_slope(get_activation(name), x)
    torch.testing.assert_close(together, apart)
    weights = torch.linspace(-1, 2, num, dtype=torch.float64)

    def gradient(value: Tensor, slope: Tensor) -> Tensor:
        total = (weights * value).sum() + (weights.cos() * slope).sum() + 0 * x.sum()
        return torch.autograd.grad(total, x)[0]

    torch.testing.assert_close(gradient(*together), gradient(*apart))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_elu_of_many_numbers_is_that_of_torch(dtype: torch.dtype) -> None:
    """To a rounding error of 1, with its gradient also at 0; in half precision to the bit."""
    # 0 is in the middle
    x = torch.linspace(-20, 20, _MIN_ENTRIES_FOR_FAST_EXP + 1).to(dtype).requires_grad_()
    found, expected = get_activation("elu")[0](x), F.elu(x)
    accuracy = 0.0 if dtype is torch.bfloat16 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=accuracy, atol=accuracy)
    gradients = [torch.autograd.grad(value.sum(), x)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=4 * accuracy, atol=0)
    assert gradients[0][_MIN_ENTRIES_FOR_FAST_EXP // 2] == 1
    assert found.dtype == dtype


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'swish' is unknown.*'silu'.*your own generator"):
        get_activation("swish")
