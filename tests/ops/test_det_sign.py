"""Signs of determinants: right where they are told, and not told where they may be wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops.det_sign import det_sign


@given(st.integers(1, 8), st.integers(0, 2**20), st.sampled_from([torch.float32, torch.float64]))
def test_signs_are_those_of_the_eigenvalues(m: int, seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    matrix = torch.randn(20, m, m, dtype=dtype)
    signs = det_sign(matrix)
    expected = torch.linalg.eigvals(matrix.double()).prod(-1).real.sign()
    assert ((signs == expected) | (signs == 0)).all()
    assert (signs != 0).sum() >= 18


@given(st.integers(2, 6), st.integers(0, 2**20), st.floats(-9, -1))
def test_no_error_within_the_precision_turns_a_sign_that_is_told(
    m: int, seed: int, smallest: float
) -> None:
    torch.manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(50, m, m, dtype=torch.float64))
    values = torch.logspace(0, smallest, m, dtype=torch.float64)
    exact = (u * values) @ v
    told = det_sign(exact.float())
    rows = exact.norm(dim=-1, keepdim=True)
    wrong = exact + 50 * torch.finfo(torch.float32).eps * rows * torch.randn_like(exact) / m**0.5
    turned = torch.linalg.slogdet(wrong).sign != torch.linalg.slogdet(exact).sign
    assert not (turned & (told != 0)).any()


def test_units_of_the_rows_do_not_matter() -> None:
    matrix = torch.diag(torch.tensor([1e-12, -1.0, 1e12]))
    assert det_sign(matrix) == -1


@pytest.mark.parametrize("scale", [0.05, torch.tensor(0.05), torch.tensor([0.05, 0.001])])
def test_output_noise_hides_small_slopes(scale: float | torch.Tensor) -> None:
    slopes = torch.tensor([[0.4, 1.0], [-0.4, 1.0], [0.8, 1.0], [-0.8, 1.0]])
    assert det_sign(torch.diag_embed(slopes), scale).tolist() == [0, 0, 1, -1]


def test_where_there_is_no_sign() -> None:
    assert det_sign(torch.randn(3, 4, 2)).tolist() == [0, 0, 0]
    lost = torch.stack(
        [torch.eye(2) * torch.nan, torch.zeros(2, 2), torch.ones(2, 2), torch.eye(2)]
    )
    assert det_sign(lost).tolist() == [0, 0, 0, 1]
