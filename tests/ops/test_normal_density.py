"""Densities of many normal numbers: those of torch, with their derivatives, and nothing kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.ops.normal_density import normal_log_density

SHAPES = [(), (1,), (4,), (3, 4)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def expected(value: Tensor, loc: Tensor, scale: Tensor, event_dim: int) -> Tensor:
    normal = torch.distributions.Normal(loc, scale).expand(value.shape)
    return torch.distributions.Independent(normal, event_dim).log_prob(value)


@pytest.mark.long
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.integers(0, 3), st.integers(0, 1000))
def test_densities_and_derivatives_are_those_of_torch(
    loc_shape: Any, scale_shape: Any, event_dim: int, seed: int
) -> None:
    value = numbers(2, 3, 4, seed=seed).requires_grad_()
    loc = numbers(*loc_shape, seed=seed + 1).requires_grad_()
    scale = numbers(*scale_shape, seed=seed + 2).exp().requires_grad_()
    found = normal_log_density(value, loc.expand(3, 4), scale.expand(2, 3, 4), event_dim)
    right = expected(value, loc, scale, event_dim)
    torch.testing.assert_close(found, right)
    weights = numbers(*found.shape, seed=3)
    of = (value, loc, scale)
    pairs = zip(
        *(torch.autograd.grad((weights * x).sum(), of) for x in (found, right)), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_second_derivatives() -> None:
    value = numbers(2, 3).requires_grad_()
    loc, scale = numbers(3).requires_grad_(), numbers(3).exp().requires_grad_()
    of = (value, loc, scale)
    assert torch.autograd.gradcheck(lambda *x: normal_log_density(*x, 1), of)
    assert torch.autograd.gradgradcheck(lambda *x: normal_log_density(*x, 1), of)


def test_vmap_goes_over_draws() -> None:
    value, loc, scale = numbers(5, 2, 3), numbers(3), numbers(3).exp()
    found = torch.func.vmap(lambda x: normal_log_density(x, loc, scale, 1))(value)
    torch.testing.assert_close(found, expected(value, loc, scale, 1))


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None), (None, None)])
@pytest.mark.parametrize("of_value", [0, None], ids=["drawn", "observed"])
def test_vmap_keeps_the_derivatives_by_parameters(
    in_dims: tuple[int | None, int | None], of_value: int | None
) -> None:
    """Their own ``requires_grad`` is False in there, whatever is asked for outside."""
    if of_value is None and in_dims == (None, None):
        pytest.skip("nothing to go over")
    shapes = [() if dim is None else (5,) for dim in in_dims]
    loc, scale = numbers(*shapes[0]).requires_grad_(), numbers(*shapes[1]).exp().requires_grad_()
    of = (numbers(*(5, 3, 4)[of_value is None :]).requires_grad_(), loc, scale)

    def density(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return normal_log_density(value, loc.expand(3, 4), scale.expand(3, 4), 2)

    found = torch.func.vmap(density, in_dims=(of_value, *in_dims))(*of)
    parameters = [x[:, None, None] if x.dim() else x for x in (loc, scale)]
    right = expected(of[0].expand(5, 3, 4), *parameters, 2)
    pairs = zip(*(torch.autograd.grad(x.cos().sum(), of) for x in (found, right)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("event_dim", [0, 1])
def test_the_numbers_are_all_that_is_kept(event_dim: int) -> None:
    value = numbers(1000).requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    zero, one = torch.zeros((), dtype=value.dtype), torch.ones((), dtype=value.dtype)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        density = normal_log_density(value, zero.expand(1000), one.expand(1000), event_dim)
    assert sum(x.untyped_storage().nbytes() for x in kept) <= value.nbytes + 2 * one.nbytes
    assert {x.data_ptr() for x in kept if x.numel() > 1} == {value.data_ptr()}
    density.sum().backward()
    torch.testing.assert_close(value.grad, -value.detach())
