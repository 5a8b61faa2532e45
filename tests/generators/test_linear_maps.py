"""Linear maps between blocks: products, inverses and determinants against their matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.generators.linear_maps import LinearMap, linear_map

KINDS = ["diagonal", "full", "low-rank", "triangular"]


def _random(kind: str, size: int, seed: int) -> LinearMap:
    torch.manual_seed(seed)
    mix = linear_map(kind, size, 0.5).double()
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mix


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(1, 6), st.integers(0, 2**31))
def test_everything_is_that_of_the_matrix(kind: str, size: int, seed: int) -> None:
    mix = _random(kind, size, seed)
    matrix = mix(torch.eye(size, dtype=torch.float64)).mT
    x = torch.randn(3, 2, size, dtype=torch.float64)
    torch.testing.assert_close(mix(x), torch.einsum("ij,...j->...i", matrix, x))
    torch.testing.assert_close(mix.transposed(x), torch.einsum("ji,...j->...i", matrix, x))
    torch.testing.assert_close(mix.log_abs_det(), torch.linalg.slogdet(matrix).logabsdet)
    columns = torch.randn(2, size, 4, dtype=torch.float64)
    torch.testing.assert_close(mix.columns(columns), matrix @ columns)
    torch.testing.assert_close(mix(mix.inverse(x)), x, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_starts_as_a_multiple_of_the_identity(kind: str) -> None:
    x = torch.randn(4, 5)
    torch.testing.assert_close(linear_map(kind, 5, 0.3)(x), 0.3 * x)


@pytest.mark.parametrize("kind", KINDS)
def test_invertible_means_whatever_the_parameters(kind: str) -> None:
    mix = linear_map(kind, 4)
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.copy_(10 * torch.randn_like(parameter))
        if kind == "full":
            mix.weight.zero_()  # type: ignore[operator]
    singular = not bool(mix.log_abs_det().isfinite())
    assert mix.is_invertible is (kind in ("diagonal", "triangular"))
    assert not (mix.is_invertible and singular)
