"""Whitened products against the matrix, on either side, for every kind of scale."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.ops.linearisation import DenseLinearisation
from pyro_implicit.ops.logdet import half_log_det
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian, eigh_or_nan
from tests.ops.dense import MatrixLinearisation, whitened

sizes = st.integers(1, 6)
batches = st.sampled_from([(), (3,), (2, 3)])
kinds = st.sampled_from(["number", "scalar", "diagonal"])
seeds = st.integers(0, 2**20)


def make_scale(kind: str, m: int, sigma: float = 0.3) -> float | Tensor:
    if kind == "number":
        return sigma
    return sigma * (0.5 + torch.rand(() if kind == "scalar" else (m,), dtype=torch.float64))


@given(sizes, sizes, batches, kinds, seeds)
def test_products_are_those_of_the_whitened_matrix(
    m: int, d: int, batch: tuple[int, ...], kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    scale = make_scale(kind, m)
    ours, matrix = ScaledJacobian(MatrixLinearisation(jac), scale), whitened(jac, scale)
    assert ours.size == min(m, d) and ours.floor == 1 and ours.batch_shape == batch
    x = torch.randn(4, *batch, min(m, d), dtype=torch.float64)
    y = torch.randn(4, *batch, max(m, d), dtype=torch.float64)
    torch.testing.assert_close(ours.product(x), (matrix @ x[..., None])[..., 0])
    torch.testing.assert_close(ours.adjoint(y), (matrix.mT @ y[..., None])[..., 0])


@given(sizes, sizes, kinds, seeds)
def test_log_scale_is_what_whitening_took_from_the_determinant(
    m: int, d: int, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    jac, scale = torch.randn(2, m, d, dtype=torch.float64), make_scale(kind, m)
    matrix = whitened(jac, scale)
    inner = torch.eye(min(m, d), dtype=torch.float64) + matrix.mT @ matrix
    value = 0.5 * torch.linalg.slogdet(inner).logabsdet
    value = value + ScaledJacobian(MatrixLinearisation(jac), scale).log_scale()
    torch.testing.assert_close(value, half_log_det(jac, scale), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("m", "d"), [(3, 3), (2, 4)])
def test_without_output_noise_nothing_is_divided(m: int, d: int) -> None:
    jac = torch.randn(m, d, dtype=torch.float64)
    ours = ScaledJacobian(MatrixLinearisation(jac), 0.0)
    assert ours.floor == 0 and ours.log_scale() == 0
    x = torch.randn(1, m, dtype=torch.float64)
    torch.testing.assert_close(ours.product(x)[0], whitened(jac, 0) @ x[0])


@pytest.mark.parametrize(("m", "d"), [(4, 2), (2, 4)])
def test_products_are_differentiable_in_the_scale(m: int, d: int) -> None:
    jac = torch.randn(m, d, dtype=torch.float64, requires_grad=True)
    sigma = torch.full((m,), 0.4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, min(m, d), dtype=torch.float64)

    def value(jac: Tensor, sigma: Tensor) -> Tensor:
        whole = ScaledJacobian(MatrixLinearisation(jac), sigma)
        return whole.product(x).square().sum() + whole.log_scale()

    assert torch.autograd.gradcheck(value, (jac, sigma))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_generator_in_half_precision_gets_products_in_it_and_the_rest_in_float32(
    dtype: torch.dtype,
) -> None:
    jac = torch.randn(3, 2).to(dtype)
    ours = ScaledJacobian(MatrixLinearisation(jac), 1.0)
    assert ours.dtype == torch.float32
    out = ours.product(torch.ones(1, 2))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out[0], (jac @ torch.ones(2, dtype=dtype)).float())


def test_autocast_does_not_reach_the_products() -> None:
    weight = torch.randn(4, 3)
    ours = ScaledJacobian(DenseLinearisation(torch.zeros(2, 4), [weight], []), 0.1)
    x, y = torch.randn(1, 2, 3), torch.randn(1, 2, 4)
    plain = ours.product(x), ours.adjoint(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (weight @ weight.mT).dtype == torch.bfloat16
        for under, expected in zip((ours.product(x), ours.adjoint(y)), plain, strict=True):
            assert torch.equal(under, expected)


@pytest.mark.parametrize(
    ("scale", "m", "d", "error", "message"),
    [
        (-0.1, 2, 2, ArgumentError, "scale=-0.1"),
        (0.0, 3, 2, ArgumentError, "scale=0 with 2 noise dimensions for 3 outputs"),
        (torch.ones(2), 3, 2, ShapeError, r"scale has shape \(2,\)"),
    ],
)
def test_unusable_scales_are_refused(
    scale: float | Tensor, m: int, d: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ScaledJacobian(MatrixLinearisation(torch.randn(m, d)), scale)


def test_eigenvalues_of_what_is_not_finite_are_nan_and_the_others_stay() -> None:
    matrix = torch.eye(3).expand(4, 3, 3).clone() * 2
    matrix[1, 0, 0], matrix[2, 1, 1] = math.nan, math.inf
    values, vectors = eigh_or_nan(matrix)
    assert values[1:3].isnan().all() and vectors[1:3].isnan().all()
    assert torch.equal(values[[0, 3]], torch.full((2, 3), 2.0))
    assert vectors[[0, 3]].isfinite().all()
