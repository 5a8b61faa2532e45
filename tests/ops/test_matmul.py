"""Matrix-multiplication layers and their hand-written derivatives against autograd."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pyro_implicit.ops import matmul
from pyro_implicit.ops.activations import ACTIVATIONS, get_activation
from pyro_implicit.ops.matmul import (
    MatMulWeights,
    chain_cotangent,
    chain_forward,
    chain_pairing,
    chain_tangent,
    kept_cotangent,
    kept_tangent,
)

Shapes = list[tuple[int, int]]
sides = st.integers(1, 5)
shapes = st.lists(st.tuples(sides, sides), min_size=2, max_size=4)
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)
names = st.sampled_from(sorted(ACTIVATIONS))


def _weights(shapes: Shapes) -> list[MatMulWeights]:
    return [
        MatMulWeights(
            torch.randn(s[0], r[0], dtype=torch.float64),
            torch.randn(s[0], r[1], dtype=torch.float64),
            torch.randn(r[1], s[1], dtype=torch.float64),
            torch.randn(s, dtype=torch.float64),
            scale=0.7,
        )
        for r, s in zip(shapes[:-1], shapes[1:], strict=True)
    ]


def _by_the_book(weights: list[MatMulWeights], name: str, x: Tensor) -> Tensor:
    """Algorithm 1, one matrix at a time."""
    for index, layer in enumerate(weights):
        x = layer.left.mm(x) + layer.left_bias
        x = 0.7 * x.mm(layer.right) + layer.right_bias
        if index + 1 < len(weights):
            x = get_activation(name)[0](x)
    return x


@given(shapes, names, batches)
def test_forward_is_algorithm_1(shapes: Shapes, name: str, batch: tuple[int, ...]) -> None:
    weights = _weights(shapes)
    activations = [get_activation(name)] * (len(weights) - 1) + [None]
    x = torch.randn(*batch, *shapes[0], dtype=torch.float64)
    out, layers = chain_forward(weights, activations, x)
    assert out.shape == (*batch, *shapes[-1])
    assert [layer.slope is None for layer in layers] == [False] * (len(layers) - 1) + [True]
    flat = [_by_the_book(weights, name, one) for one in x.reshape(-1, *shapes[0])]
    torch.testing.assert_close(out, torch.stack(flat).reshape(out.shape))


@pytest.mark.long
@given(shapes, names, batches, st.lists(st.integers(1, 3), max_size=2).map(tuple), st.booleans())
def test_products_are_those_of_autograd(
    shapes: Shapes, name: str, batch: tuple[int, ...], probes: tuple[int, ...], linear_end: bool
) -> None:
    weights = _weights(shapes)
    count = len(weights) - linear_end
    activations = [get_activation(name)] * count + [None] * linear_end
    x = torch.randn(*batch, *shapes[0], dtype=torch.float64)
    out, layers = chain_forward(weights, activations, x)
    dx = torch.randn(*probes, *x.shape, dtype=torch.float64)
    dy = torch.randn(*probes, *out.shape, dtype=torch.float64)
    tangent, cotangent = chain_tangent(layers, dx), chain_cotangent(layers, dy)
    assert (tangent.shape, cotangent.shape) == (dy.shape, dx.shape)

    def function(inputs: Tensor) -> Tensor:
        return chain_forward(weights, activations, inputs)[0]

    flat = zip(dx.reshape(-1, *x.shape), dy.reshape(-1, *out.shape), strict=True)
    forward, back = [], []
    for direction, covector in flat:
        forward.append(torch.func.jvp(function, (x,), (direction,))[1])
        back.append(torch.func.vjp(function, x)[1](covector)[0])
    torch.testing.assert_close(tangent, torch.stack(forward).reshape(tangent.shape))
    torch.testing.assert_close(cotangent, torch.stack(back).reshape(cotangent.shape))


@pytest.mark.long
@given(shapes, names, batches, st.integers(1, 3), st.booleans())
def test_pairing_has_the_gradient_of_the_bilinear_form(
    shapes: Shapes, name: str, batch: tuple[int, ...], num: int, linear_end: bool
) -> None:
    """In weights and noise, each draw weighed in its own way, from products that are the same."""
    weights = _weights(shapes)
    parameters = [p.requires_grad_() for w in weights for p in vars(w).values() if p is not w.scale]
    count = len(weights) - linear_end
    activations = [get_activation(name)] * count + [None] * linear_end
    x = torch.randn(*batch, *shapes[0], dtype=torch.float64, requires_grad=True)
    out, layers = chain_forward(weights, activations, x)
    dx = torch.randn(num, *x.shape, dtype=torch.float64)
    dy = torch.randn(num, *out.shape, dtype=torch.float64)
    with torch.no_grad():
        (tangent, of_dx), (cotangent, of_dy) = kept_tangent(layers, dx), kept_cotangent(layers, dy)
    torch.testing.assert_close(tangent, chain_tangent(layers, dx).detach())
    torch.testing.assert_close(cotangent, chain_cotangent(layers, dy).detach())
    found = chain_pairing(layers, dx, dy, of_dx, of_dy)
    expected = (dy * chain_tangent(layers, dx)).sum((-2, -1)).sum(0)
    share = torch.rand(batch, dtype=torch.float64)
    gradients = [
        torch.autograd.grad(
            (share * value).sum(), [*parameters, x], retain_graph=True, materialize_grads=True
        )
        for value in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_an_empty_chain_is_the_identity() -> None:
    x = torch.randn(2, 3, 4)
    out, layers = chain_forward([], [], x)
    assert out is x
    assert chain_tangent(layers, x) is x
    assert chain_cotangent(layers, x) is x
    assert kept_tangent(layers, x) == (x, []) and kept_cotangent(layers, x) == (x, [])
    assert chain_pairing(layers, x, x, [], []) == 0.0


@given(sides, sides, sides, sides)
def test_factors_are_multiplied_in_the_cheaper_order(
    rows: int, inner: int, width: int, columns: int
) -> None:
    left, x, right = (
        torch.randn(rows, inner),
        torch.randn(inner, width),
        torch.randn(width, columns),
    )
    flops = []
    for product in (
        lambda: matmul._two_products(left, x, right),
        lambda: (left @ x) @ right,
        lambda: left @ (x @ right),
    ):
        with FlopCounterMode(display=False) as counter:
            value = product()
        flops.append(counter.get_total_flops())
        torch.testing.assert_close(value, left @ x @ right)
    assert flops[0] == min(flops[1:])


@pytest.mark.parametrize("product", [chain_tangent, chain_cotangent])
def test_activations_are_not_evaluated_again(product: object) -> None:
    weights = _weights([(2, 3), (4, 5), (6, 7)])
    slope = mock.Mock(side_effect=ACTIVATIONS["tanh"][1])
    value = mock.Mock(side_effect=ACTIVATIONS["tanh"][0])
    _, layers = chain_forward(weights, [(value, slope), (value, slope)], torch.randn(2, 3).double())
    assert (value.call_count, slope.call_count) == (2, 2)
    size = (2, 3) if product is chain_tangent else (6, 7)
    for _ in range(3):
        product(layers, torch.randn(size, dtype=torch.float64))  # type: ignore[operator]
    assert (value.call_count, slope.call_count) == (2, 2)
