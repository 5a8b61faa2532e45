"""Conditioned: the inner generator with some inputs held, against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators import MLPGenerator, ModuleGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.conditioned import Conditioned


def make(kind: str, d: int, k: int, m: int) -> Generator:
    if kind == "module":
        return ModuleGenerator(nn.Sequential(nn.Linear(d + k, m), nn.Tanh()), (d + k,), m).double()
    return MLPGenerator(d + k, m, (5,), skip=kind == "skip").double()


CASES = st.tuples(
    st.sampled_from(["perceptron", "skip", "module"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([((), ()), ((4,), (4,)), ((2, 4), (4,)), ((2, 4, 1), (4, 1)), ((3, 1), (1,))]),
)


@pytest.mark.long
@settings(max_examples=25)
@given(case=CASES)
def test_values_jacobians_and_products_are_those_of_autograd(case) -> None:
    kind, d, k, m, (batch, rows) = case
    torch.manual_seed(0)
    inner = make(kind, d, k, m)
    context = torch.randn(*rows, k, dtype=torch.float64)
    batch = torch.broadcast_shapes(batch, rows)
    z = torch.randn(*batch, d, dtype=torch.float64)
    fn = Conditioned(inner, context)
    assert (fn.noise_dim, fn.output_dim) == (d, m)
    joined = torch.cat([z, context.expand(*batch, k)], -1)
    value = fn(z)
    torch.testing.assert_close(value, inner(joined))
    flat_z, flat_c = z.reshape(-1, d), context.expand(*batch, k).reshape(-1, k)
    expected = torch.stack(
        [
            torch.autograd.functional.jacobian(
                lambda u, c=c: inner(torch.cat([u, c])[None])[0], row, vectorize=False
            )
            for row, c in zip(flat_z, flat_c, strict=True)
        ]
    ).reshape(*batch, m, d)
    torch.testing.assert_close(fn.jacobian(z), expected)
    linear = fn.linearise(z)
    torch.testing.assert_close(linear.value, value)
    v, u = torch.randn(2, *batch, d).double(), torch.randn(2, *batch, m).double()
    torch.testing.assert_close(linear.jvp(v), (expected @ v[..., None])[..., 0])
    torch.testing.assert_close(linear.vjp(u), (expected.mT @ u[..., None])[..., 0])


def test_full_rank_asks_for_as_much_noise_as_latents() -> None:
    inner = MLPGenerator(4, 3, (5,), skip=True)
    assert inner.full_rank
    assert Conditioned(inner, torch.zeros(2, 1)).full_rank
    assert not Conditioned(inner, torch.zeros(2, 2)).full_rank


@pytest.mark.parametrize("context", [torch.zeros(()), torch.zeros(2, 3), torch.zeros(2, 5)])
def test_a_context_must_leave_room_for_noise(context) -> None:
    with pytest.raises(ShapeError, match=r"cannot be conditioned.*\(d \+ k,\)"):
        Conditioned(MLPGenerator(3, 2), context)


def test_what_is_no_generator_or_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match="inner is None; expected a generator"):
        Conditioned(None, torch.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="context is 1.0; expected a tensor"):
        Conditioned(MLPGenerator(4, 2), 1.0)  # type: ignore[arg-type]
