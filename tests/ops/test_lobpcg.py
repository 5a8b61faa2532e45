"""The smallest singular value: never too small, right when converged, and told when it is not."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.ops.lobpcg import SmallestPair, _search, smallest_eigenpair
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian
from tests.ops.dense import MatrixLinearisation, whitened, with_singular_values

sizes = st.integers(1, 8)
batches = st.sampled_from([(), (3,), (2, 3)])
scales = st.sampled_from([0.01, 0.3, 2.0])
seeds = st.integers(0, 2**20)


@torch.no_grad()
def search(
    jacobian: ScaledJacobian, start: Tensor, num_iterations: int, tolerance: float = 0.0
) -> SmallestPair:
    """The iteration, also where so many would be replaced by a decomposition."""
    return _search(jacobian, start, num_iterations, tolerance)


def run(
    jac: Tensor,
    scale: float | Tensor,
    num_iterations: int,
    tolerance: float = 0.0,
    method: Any = search,
) -> SmallestPair:
    jacobian = ScaledJacobian(MatrixLinearisation(jac), scale)
    start = torch.randn(*jac.shape[:-2], jacobian.size, dtype=jac.dtype)
    return method(jacobian, start, num_iterations, tolerance)


def smallest(jac: Tensor, scale: float | Tensor) -> Tensor:
    return torch.linalg.svdvals(whitened(jac, scale))[..., -1].square()


@pytest.mark.long
@settings(max_examples=30)
@given(sizes, sizes, batches, scales, st.integers(0, 6), seeds)
def test_value_is_the_quotient_of_the_vector_and_never_below_the_smallest(
    m: int, d: int, batch: tuple[int, ...], scale: float, num_iterations: int, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    pair, matrix = run(jac, scale, num_iterations), whitened(jac, scale)
    assert pair.value.shape == pair.residual.shape == batch
    assert pair.num_iterations == num_iterations
    image = (matrix @ pair.vector[..., None])[..., 0]
    top = torch.linalg.svdvals(matrix)[..., 0].square()
    assert (pair.value >= smallest(jac, scale) - 1e-9 * top).all()
    assert ((pair.value - image.square().sum(-1)).abs() <= 1e-9 * top).all()
    torch.testing.assert_close(pair.vector.norm(dim=-1), torch.ones(batch).double())
    rest = (matrix.mT @ image[..., None])[..., 0] - pair.value[..., None] * pair.vector
    expected = rest.norm(dim=-1) / (1 + pair.value)
    assert ((pair.residual - expected).abs() <= 1e-8 * top).all()


@pytest.mark.long
@settings(max_examples=30)
@given(sizes, sizes, batches, scales, seeds)
def test_an_eigenvalue_lies_within_the_residual(
    m: int, d: int, batch: tuple[int, ...], scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    pair = run(jac, scale, 2)
    found = 1 + pair.value
    eigenvalues = 1 + torch.linalg.svdvals(whitened(jac, scale)).square()
    distance = (eigenvalues - found[..., None]).abs().min(-1).values
    assert (distance <= pair.residual * found * (1 + 1e-9) + 1e-9 * eigenvalues[..., 0]).all()


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(0, 3), st.booleans(), scales, seeds)
def test_up_to_three_dimensions_are_searched_whole(
    n: int, more: int, wide: bool, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    shape = (n, n + more) if wide else (n + more, n)
    jac = torch.randn(4, *shape, dtype=torch.float64)
    pair = run(jac, scale, max(n - 1, 1))
    top = torch.linalg.svdvals(whitened(jac, scale))[..., 0].square()
    assert ((pair.value - smallest(jac, scale)).abs() <= 1e-8 * top).all()


@pytest.mark.parametrize(("m", "d"), [(40, 12), (12, 40), (12, 12)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_converges_to_the_smallest_singular_value(m: int, d: int, diagonal: bool) -> None:
    jac = with_singular_values(torch.linspace(0.2, 2.0, 12), m, d, (3,))
    scale = 0.1 * (0.5 + torch.rand(m).double()) if diagonal else 0.1
    pair = run(jac, scale, 150)
    torch.testing.assert_close(pair.value, smallest(jac, scale), rtol=1e-8, atol=1e-8)
    assert pair.residual.max() < 1e-3


def test_takes_the_steps_of_scipy() -> None:
    jac = with_singular_values(torch.logspace(0, 1, 25), 60, 25)
    matrix, start = whitened(jac, 1.0), torch.randn(25, dtype=torch.float64)
    jacobian = ScaledJacobian(MatrixLinearisation(jac), 1.0)
    gram = (matrix.mT @ matrix).numpy()
    ours = [search(jacobian, start, k).value.item() for k in range(17)]
    for count in (1, 2, 3, 6, 10, 15):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge
            theirs, *_ = scipy.sparse.linalg.lobpcg(
                gram, start[:, None].numpy(), largest=False, maxiter=count, tol=1e-30
            )
        # SciPy returns that of its iterates with the smallest residual
        assert np.isclose(theirs[0], ours[: count + 2], rtol=1e-6).any()


@pytest.mark.long
@settings(max_examples=30)
@given(seeds)
def test_never_gets_worse(seed: int) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(20, 10, dtype=torch.float64)
    jacobian = ScaledJacobian(MatrixLinearisation(jac), 0.1)
    start = torch.randn(10, dtype=torch.float64)
    values = [search(jacobian, start, k).value.item() for k in range(12)]
    assert all(b <= a * (1 + 1e-9) for a, b in zip(values[:-1], values[1:], strict=True))


def test_each_draw_is_searched_by_itself() -> None:
    jac = torch.randn(3, 20, 10, dtype=torch.float64)
    start = torch.randn(3, 10, dtype=torch.float64)
    together = search(ScaledJacobian(MatrixLinearisation(jac), 0.1), start, 5)
    for i in range(3):
        alone = ScaledJacobian(MatrixLinearisation(jac[i]), 0.1)
        torch.testing.assert_close(
            search(alone, start[i], 5).value, together.value[i], rtol=1e-8, atol=0
        )


def test_starting_at_the_solution_stays_there() -> None:
    jac = with_singular_values(torch.linspace(1, 5, 10), 20, 10)
    _, _, right = torch.linalg.svd(jac, full_matrices=False)
    jacobian = ScaledJacobian(MatrixLinearisation(jac), 1.0)
    pair = search(jacobian, right[-1], 5)
    torch.testing.assert_close(pair.value, torch.ones_like(pair.value))
    assert pair.residual < 1e-10


def test_tolerance_stops_when_all_draws_are_there_and_zero_never_does() -> None:
    jac = with_singular_values(torch.linspace(1, 5, 10), 20, 10, (2,))
    pair = run(jac, 1.0, 200, tolerance=0.01)
    assert 2 < pair.num_iterations < 60
    assert pair.residual.max() <= 0.01
    assert run(jac, 1.0, 80).num_iterations == 80
    assert run(jac, 1.0, 2, tolerance=0.01).residual.max() > 0.01


def test_one_product_per_iteration() -> None:
    linearisation = MatrixLinearisation(torch.randn(20, 10))
    smallest_eigenpair(ScaledJacobian(linearisation, 0.1), torch.randn(10), 7)
    assert linearisation.num_jvp == linearisation.num_vjp == 8


@pytest.mark.long
@pytest.mark.parametrize("scale", [1e-2, 1e-4])
def test_float32_stays_at_the_solution(scale: float) -> None:
    jac = with_singular_values(torch.linspace(0.2, 1.0, 30), 60, 30, (3,)).float()
    exact = smallest(jac, scale).float()
    for count in (60, 120, 500):  # rounding errors must not carry it away again
        pair = run(jac, scale, count)
        torch.testing.assert_close(pair.value, exact, rtol=1e-3, atol=0)


# ---- decomposition of what is small


@settings(max_examples=30)
@given(sizes, sizes, batches, st.sampled_from([0.0, 0.01, 0.3]), seeds)
def test_small_problems_are_exact(
    m: int, d: int, batch: tuple[int, ...], scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    if scale == 0:
        d = max(m, d)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    n = min(m, d)
    pair, matrix = run(jac, scale, n - 1, method=smallest_eigenpair), whitened(jac, scale)
    top = torch.linalg.svdvals(matrix)[..., 0].square()
    assert pair.value.shape == pair.residual.shape == batch and pair.num_iterations == n - 1
    assert ((pair.value - smallest(jac, scale)).abs() <= 1e-9 * top).all()
    image = (matrix @ pair.vector[..., None])[..., 0]
    assert ((pair.value - image.square().sum(-1)).abs() <= 1e-9 * top).all()
    if scale > 0:
        assert (pair.residual < 1e-9 * top).all()


@pytest.mark.parametrize(("m", "d"), [(9, 6), (6, 9)])
def test_small_problems_cost_no_more(m: int, d: int) -> None:
    linearisation = MatrixLinearisation(torch.randn(2, m, d))
    jacobian = ScaledJacobian(linearisation, 0.1)
    smallest_eigenpair(jacobian, torch.randn(2, 6), 5)
    assert linearisation.num_jvp + linearisation.num_vjp == 1  # of six directions at once
    smallest_eigenpair(jacobian, torch.randn(2, 6), 4)
    assert linearisation.num_jvp + linearisation.num_vjp == 1 + 10


# ---- edges


@pytest.mark.parametrize("method", [search, smallest_eigenpair])
@pytest.mark.parametrize(("m", "d"), [(5, 3), (3, 5), (3, 3)])
def test_a_jacobian_of_zeros(method: Any, m: int, d: int) -> None:
    pair = run(torch.zeros(2, m, d), 0.1, 3, method=method)
    assert torch.equal(pair.value, torch.zeros(2)) and torch.equal(pair.residual, torch.zeros(2))


@pytest.mark.parametrize("method", [search, smallest_eigenpair])
@pytest.mark.parametrize(("m", "d"), [(3, 3), (3, 6)])
def test_without_output_noise(method: Any, m: int, d: int) -> None:
    jac = torch.randn(m, d, dtype=torch.float64)
    pair = run(jac, 0.0, 5, method=method)
    torch.testing.assert_close(pair.value, smallest(jac, 0.0), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("method", [search, smallest_eigenpair])
def test_nan_stays_in_its_own_draw(method: Any) -> None:
    jac = torch.randn(2, 8, 6)
    jac[0, 0, 0] = math.nan
    pair = run(jac, 0.1, 30, method=method)
    assert pair.value[0].isnan() and pair.residual[0].isnan()
    torch.testing.assert_close(pair.value[1], smallest(jac[1], 0.1).float(), rtol=0.05, atol=0)


@pytest.mark.parametrize("method", [search, smallest_eigenpair])
def test_no_graph_is_built(method: Any) -> None:
    pair = run(torch.randn(5, 3, requires_grad=True), 0.1, 2, method=method)
    assert not pair.value.requires_grad and not pair.vector.requires_grad
