"""Every route to the log-determinant against the m x m determinant, value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.ops.logdet import (
    check_scale,
    half_log_det,
    half_log_det_gram,
    is_zero,
    low_rank_half_log_det,
    upcast,
)

sizes = st.integers(1, 7)
batches = st.sampled_from([(), (3,), (2, 3), (0,)])
kinds = st.sampled_from(["number", "scalar", "diagonal", "zero"])
log_scales = st.floats(-4, 1)
seeds = st.integers(0, 2**20)


def _scale(kind: str, log_scale: float, m: int) -> float | Tensor:
    sigma = 10**log_scale
    if kind == "number":
        return sigma
    if kind == "zero":
        return 0.0
    if kind == "scalar":
        return torch.tensor(sigma, dtype=torch.float64)
    return sigma * (0.5 + torch.rand(m, dtype=torch.float64))


def _brute(jac: Tensor, scale: float | Tensor) -> Tensor:
    m = jac.shape[-2]
    noise = torch.as_tensor(scale, dtype=jac.dtype).expand(m) ** 2
    return 0.5 * torch.linalg.slogdet(jac @ jac.mT + torch.diag(noise)).logabsdet


@given(sizes, sizes, batches, kinds, log_scales, seeds)
def test_half_log_det_is_the_brute_force_one(
    d: int, m: int, batch: tuple[int, ...], kind: str, log_scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    if kind == "zero":
        d = max(d, m)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    scale = _scale(kind, log_scale, m)
    value = half_log_det(jac, scale)
    assert value.shape == batch
    # the brute force itself loses digits where a direction is nearly missing
    torch.testing.assert_close(value, _brute(jac, scale), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@given(sizes, sizes, kinds, st.floats(-2, 1), seeds)
def test_half_log_det_has_the_brute_force_gradient(
    d: int, m: int, kind: str, log_scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    if kind == "zero":  # a square random matrix may be nearly singular; two more columns are not
        d = m + 2
    jac = torch.randn(2, m, d, dtype=torch.float64, requires_grad=True)
    scale = _scale(kind, log_scale, m)
    wrt = [jac] + ([scale.requires_grad_()] if isinstance(scale, Tensor) else [])
    ours = torch.autograd.grad(half_log_det(jac, scale).sum(), wrt)
    brute = torch.autograd.grad(_brute(jac, scale).sum(), wrt)
    for mine, theirs in zip(ours, brute, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("m", "d"), [(3, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_half_log_det_passes_gradcheck(m: int, d: int, diagonal: bool) -> None:
    jac = torch.randn(2, m, d, dtype=torch.float64, requires_grad=True)
    sigma = torch.full((m,) if diagonal else (), 0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(half_log_det, (jac, sigma))


@given(st.sampled_from([(10, 4), (10, 10), (4, 10), (30, 25)]), seeds)
def test_float32_input_keeps_its_digits_at_a_tiny_scale(shape: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*shape)
    jac = jac / torch.linalg.svdvals(jac)[0]
    value = half_log_det(jac, 1e-4)
    assert value.dtype == torch.float32
    assert abs(value.item() - _brute(jac.double(), 1e-4).item()) < 1e-3


def test_square_jacobian_without_noise_ignores_its_sign() -> None:
    jac = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)  # determinant -6
    assert half_log_det(jac).item() == pytest.approx(math.log(6))


@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_singular_without_noise_is_minus_infinity(shape: tuple[int, int]) -> None:
    assert half_log_det(torch.zeros(shape)).item() == -math.inf


@pytest.mark.parametrize(("m", "d", "scale"), [(3, 2, 0.1), (2, 3, 0.1), (2, 3, 0.0), (2, 2, 0.0)])
def test_nan_gives_nan_and_only_in_its_own_place(m: int, d: int, scale: float) -> None:
    jac = torch.randn(2, m, d)
    jac[0, 0, 0] = math.nan
    value = half_log_det(jac, scale)
    assert value[0].isnan()
    torch.testing.assert_close(value[1], half_log_det(jac[1], scale))


@given(sizes, sizes, batches, st.sampled_from(["number", "diagonal"]), log_scales, seeds)
def test_gram_route_is_the_same_number(
    d: int, m: int, batch: tuple[int, ...], kind: str, log_scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    scale = _scale(kind, log_scale, m)
    white = jac / torch.as_tensor(scale, dtype=torch.float64).expand(m)[:, None]
    value = half_log_det_gram(white.mT @ white, scale, m)
    torch.testing.assert_close(value, half_log_det(jac, scale), rtol=1e-5, atol=1e-5)


@given(sizes, st.integers(1, 4), batches, kinds, st.floats(-4, 1), seeds)
def test_low_rank_route_is_the_brute_force_one(
    m: int, h: int, batch: tuple[int, ...], kind: str, log_scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    diagonal = 0.5 + torch.rand(m, dtype=torch.float64)
    left = 0.3 * torch.randn(m, h, dtype=torch.float64)
    right = 0.3 * torch.randn(*batch, h, m, dtype=torch.float64)
    scale = _scale(kind, log_scale, m)
    value = low_rank_half_log_det(diagonal, left, right, scale)
    jac = torch.diag(diagonal) + left @ right
    assert value.shape == batch
    torch.testing.assert_close(value, half_log_det(jac, scale), rtol=1e-6, atol=1e-6)


def test_low_rank_route_allows_negative_diagonals() -> None:
    diagonal = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    left, right = torch.ones(2, 1).double(), torch.tensor([[0.5, -0.25]]).double()
    for scale in (0.0, 0.5):
        expected = half_log_det(torch.diag(diagonal) + left @ right, scale)
        torch.testing.assert_close(low_rank_half_log_det(diagonal, left, right, scale), expected)


@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_low_rank_route_passes_gradcheck(scale: float) -> None:
    torch.manual_seed(0)
    diagonal = (0.5 + torch.rand(4, dtype=torch.float64)).requires_grad_()
    left = (0.3 * torch.randn(4, 2, dtype=torch.float64)).requires_grad_()
    right = (0.3 * torch.randn(3, 2, 4, dtype=torch.float64)).requires_grad_()
    inputs: tuple[Tensor, ...] = (diagonal, left, right)
    if scale:
        inputs += (torch.tensor(scale, dtype=torch.float64, requires_grad=True),)
    assert torch.autograd.gradcheck(low_rank_half_log_det, inputs)


@pytest.mark.parametrize(
    ("scale", "m", "d", "error", "message"),
    [
        (-0.1, 2, 2, ArgumentError, r"scale=-0.1; expected a finite number >= 0"),
        (0.0, 3, 2, ArgumentError, r"scale=0 with 2 noise dimensions for 3 outputs.*scale=0.01"),
        (torch.ones(2), 3, 2, ShapeError, r"scale has shape \(2,\); expected \(\) or \(3,\)"),
        (torch.ones(1), 3, 2, ShapeError, r"scale has shape \(1,\)"),
    ],
)
def test_unusable_scales_are_refused(
    scale: float | Tensor, m: int, d: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_scale(scale, m, d)
    with pytest.raises(error, match=message):
        half_log_det(torch.randn(m, d), scale)


def test_low_rank_route_refuses_negative_scales() -> None:
    with pytest.raises(ArgumentError, match="scale=-1"):
        low_rank_half_log_det(torch.ones(2), torch.ones(2, 1), torch.ones(1, 2), -1)


def test_only_the_number_zero_is_zero() -> None:
    assert is_zero(0) and is_zero(0.0)
    assert not is_zero(1e-300) and not is_zero(torch.zeros(()))


def test_upcast_is_float64_where_there_is_one() -> None:
    assert upcast(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float64
    assert upcast(torch.ones(2, device="meta")).dtype == torch.float64
