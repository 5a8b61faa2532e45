"""Every route to a Jacobian against ``torch.func`` applied to one noise at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pyro_implicit.ops.activations import ACTIVATIONS, get_activation
from pyro_implicit.ops.jacobian import function_jacobian, mlp_chain


def _one_by_one(function: Callable[[Tensor], Tensor], z: Tensor, noise_ndim: int = 1) -> Tensor:
    """Reverse-mode Jacobians, one noise after the other."""
    shape = z.shape[z.dim() - noise_ndim :]
    rows = [
        torch.autograd.functional.jacobian(lambda x: function(x).reshape(-1), noise)
        for noise in z.reshape(-1, *shape)
    ]
    stacked = torch.stack([row.reshape(row.shape[0], -1) for row in rows])
    return stacked.reshape(*z.shape[: z.dim() - noise_ndim], *stacked.shape[1:])


@pytest.mark.long
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([(), (2,), (2, 3)]),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.integers(0, 2**20),
)
def test_chain_is_the_hidden_jacobian(
    hidden: list[int], d: int, batch: tuple[int, ...], name: str, seed: int
) -> None:
    torch.manual_seed(seed)
    sizes = [d, *hidden]
    weights = [torch.randn(n, k).double() for k, n in zip(sizes[:-1], sizes[1:], strict=True)]
    biases = [torch.randn(n).double() for n in hidden]
    activation = get_activation(name)

    def layers(z: Tensor) -> Tensor:
        for weight, bias in zip(weights, biases, strict=True):
            z = activation[0](z @ weight.mT + bias)
        return z

    z = torch.randn(*batch, d, dtype=torch.float64)
    jac = mlp_chain(weights, biases, activation, z)
    assert jac.shape == (*batch, hidden[-1], d)
    torch.testing.assert_close(jac, _one_by_one(layers, z))


def test_chain_without_layers_is_the_identity() -> None:
    jac = mlp_chain([], [], get_activation("tanh"), torch.randn(2, 3, 4))
    torch.testing.assert_close(jac, torch.eye(4).expand(2, 3, 4, 4))


@pytest.mark.parametrize(("d", "m"), [(2, 5), (5, 2), (3, 3), (1, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_function_jacobian_in_both_modes(d: int, m: int, batch: tuple[int, ...]) -> None:
    weight = torch.randn(m, d, dtype=torch.float64)

    def function(z: Tensor) -> Tensor:
        return torch.sin(weight @ z) + (z**2).sum()

    z = torch.randn(*batch, d, dtype=torch.float64)
    jac = function_jacobian(function, z, m)
    assert jac.shape == (*batch, m, d)
    torch.testing.assert_close(jac, _one_by_one(function, z))


def test_function_jacobian_flattens_shaped_noise() -> None:
    convolution = nn.Conv2d(1, 2, 3).double()
    z = torch.randn(4, 1, 5, 5, dtype=torch.float64)
    jac = function_jacobian(lambda x: convolution(x).reshape(-1), z, 18, noise_ndim=3)
    assert jac.shape == (4, 18, 25)
    torch.testing.assert_close(jac, _one_by_one(convolution, z, noise_ndim=3))


class _OnlyReverse(torch.autograd.Function):
    """A cube without a rule for forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 3 * x**2 * gradient


def test_function_jacobian_falls_back_to_reverse_mode() -> None:
    z = torch.randn(4, 2, dtype=torch.float64)
    jac = function_jacobian(lambda x: _OnlyReverse.apply(x).repeat(2), z, 4)
    torch.testing.assert_close(jac, torch.diag_embed(3 * z**2).repeat(1, 2, 1))


def test_function_jacobian_is_differentiable() -> None:
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def jac(weight: Tensor, z: Tensor) -> Tensor:
        return function_jacobian(lambda x: torch.tanh(weight @ x), z, 3)

    assert torch.autograd.gradcheck(jac, (weight, z))
