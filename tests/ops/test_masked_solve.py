"""Tests of triangular systems through masked networks, against the matrices formed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.generators.autoregressive_block import masks_of
from pyro_implicit.ops import masked_solve
from pyro_implicit.ops.masked_solve import solve_transposed


def system(n: int, m: int, h: int, strength: float, seed: int) -> list[Tensor]:
    """A right-hand side, and the parts of a block's derivative."""
    torch.manual_seed(seed)
    masks = masks_of(m, h, False)
    draw = torch.randn(n, m), torch.rand(n, m) + 0.5, strength * torch.randn(n, 3, m)
    slopes = torch.rand(n, h), torch.rand(n, h)
    weights = (
        (torch.randn(3, m, h) * masks["out"]).reshape(3 * m, h) / h**0.5,
        torch.randn(h, h) * masks["hidden"] / h**0.5,
        torch.randn(h, m) * masks["in"] / m**0.5,
    )
    return [one.double() for one in (*draw, *slopes, *weights)]


def by_matrices(parts: list[Tensor]) -> Tensor:
    right, diagonal, effect, slope_hidden, slope_in, out, hidden, inward = parts
    found = []
    for row in range(len(right)):
        n = (effect[row].unsqueeze(-1) * out.view(3, right.shape[1], -1)).sum(0)
        n = n @ slope_hidden[row].diag() @ hidden @ slope_in[row].diag() @ inward
        assert not n.triu().any()
        found.append(torch.linalg.solve((diagonal[row].diag() + n).T, right[row]))
    return torch.stack(found)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**31))
def test_it_is_what_the_matrices_tell(n: int, m: int, h: int, seed: int) -> None:
    parts = system(n, m, h, 0.3, seed)
    found, expected = solve_transposed(*parts), by_matrices(parts)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_rounds_that_do_not_close_make_way_for_matrices() -> None:
    parts = system(3, 60, 60, 300.0, 0)
    expected = by_matrices(parts)
    most = float(expected.abs().max())
    torch.testing.assert_close(solve_transposed(*parts), expected, rtol=1e-9, atol=1e-9 * most)


def test_no_noises_have_no_solution() -> None:
    assert solve_transposed(*system(0, 3, 4, 1.0, 0)).shape == (0, 3)


@pytest.mark.parametrize("mapped", [0, 1])
def test_it_is_mapped_over_noises(mapped: int) -> None:
    parts = system(6, 5, 8, 0.3, 1)
    of_noises = [one.view(3, 2, *one.shape[1:]) for one in parts[:5]]
    if mapped:
        of_noises = [one.movedim(0, mapped) for one in of_noises]
    rows = torch.vmap(
        lambda *one: solve_transposed(*one, *parts[5:]), in_dims=(mapped,) * 5, out_dims=0
    )(*of_noises)
    torch.testing.assert_close(rows.view(6, 5), solve_transposed(*parts), rtol=1e-4, atol=1e-4)


def test_without_numbers_it_has_the_shape_of_the_solution() -> None:
    parts = system(6, 5, 8, 0.3, 1)
    found = solve_transposed(*(one.to("meta") for one in parts))
    assert found.is_meta and found.shape == solve_transposed(*parts).shape


def test_weights_that_are_mapped_over_are_refused() -> None:
    parts = [one.unsqueeze(0) for one in system(2, 3, 4, 0.3, 0)]
    with pytest.raises(RuntimeError, match="weights that are mapped over"):
        torch.vmap(solve_transposed)(*parts)


def test_a_second_import_of_the_package_finds_the_operation() -> None:
    first = masked_solve._operation()
    masked_solve._operation.cache_clear()  # as a module that is loaded anew has it
    assert masked_solve._operation() is first
