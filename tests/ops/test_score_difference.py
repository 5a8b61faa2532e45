"""Smoothed differences of scores against loops over pairs and automatic derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.kernels import gaussian_kernel, inverse_multiquadric_kernel, riesz_kernel
from pyro_implicit.ops.score_difference import (
    smoothed,
    smoothing_weights,
    squared_discrepancy,
    stein_smoothed,
    stein_squared_discrepancy,
)
from pyro_implicit.ops.stein import stein_matrix, stein_u_statistic

N, M, WIDTH = 6, 3, 0.8
KERNELS = {"gaussian": gaussian_kernel, "imq": inverse_multiquadric_kernel}


def points() -> tuple[Tensor, Tensor]:
    own = torch.Generator().manual_seed(0)
    return tuple(torch.randn(N, M, generator=own).double() for _ in range(2))  # type: ignore[return-value]


def test_discrepancies_are_means_over_pairs() -> None:
    x, delta = points()
    kernel = gaussian_kernel(x, x, WIDTH)
    pairs = {(i, j): kernel[i, j] * delta[i] @ delta[j] for i in range(N) for j in range(N)}
    apart = [value for (i, j), value in pairs.items() if i != j]
    halves = [value for (i, j), value in pairs.items() if i < N // 2 <= j]
    for estimator, part in (("u-statistic", apart), ("two batches", halves)):
        found = squared_discrepancy(kernel, delta, estimator)
        torch.testing.assert_close(found, torch.stack(part).mean())


def test_a_draw_is_left_out_of_its_own_mean() -> None:
    x, delta = points()
    kernel = gaussian_kernel(x, x, WIDTH)
    expected = [
        sum(kernel[i, j] * delta[j] for j in range(N) if j != i) / (N - 1) for i in range(N)
    ]
    torch.testing.assert_close(smoothed(kernel, delta), torch.stack(expected))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KERNELS)
def test_steins_form_is_that_of_automatic_derivatives(kind: str) -> None:
    x, score = points()

    def k(a: Tensor, b: Tensor) -> Tensor:
        return KERNELS[kind](a[None], b[None], WIDTH)[0, 0]

    directions, values = [], []
    for i in range(N):
        total = torch.zeros(M).double()
        for j in range(N):
            if i == j:
                continue
            left = torch.func.grad(k, 0)(x[i], x[j])
            right = torch.func.grad(k, 1)(x[i], x[j])
            total = total + k(x[i], x[j]) * score[j] + right
            cross = torch.func.jacrev(torch.func.grad(k, 0), 1)(x[i], x[j]).trace()
            inner = k(x[i], x[j]) * score[i] @ score[j]
            values.append(inner + score[i] @ right + score[j] @ left + cross)
        directions.append(-total / (N - 1))
    torch.testing.assert_close(stein_smoothed(kind, x, score, WIDTH), torch.stack(directions))
    found = stein_squared_discrepancy(kind, x, score, WIDTH)
    torch.testing.assert_close(found, torch.stack(values).mean())


def test_the_discrepancy_is_that_of_the_diagnostics() -> None:
    x, score = points()
    found = stein_squared_discrepancy("imq", x, score, WIDTH)
    torch.testing.assert_close(found, stein_u_statistic(stein_matrix(x, score, WIDTH)))


def test_weights_add_up_to_one_and_divide_by_the_density() -> None:
    x, _ = points()
    log_q = torch.linspace(-1, 1, N).double()
    kernel = gaussian_kernel(x, x, WIDTH)
    expected = kernel / log_q.exp() * (1 - torch.eye(N).double())
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(smoothing_weights(kernel.log(), log_q), expected)


def test_the_riesz_kernel_is_a_distance_and_positive_definite() -> None:
    x, _ = points()
    centre = torch.tensor([0.5, -0.2, 0.1]).double()
    found = riesz_kernel(x, x, centre, 2.0)
    far = (x - centre).norm(dim=-1)
    apart = (x[:, None] - x).norm(dim=-1)
    torch.testing.assert_close(found, 1 + (far[:, None] + far - apart) / 4)
    assert torch.linalg.eigvalsh(found).min() > 0
    # between measures of no mass it is minus half of the distance over its width
    weights = torch.linspace(-1, 1, N).double()
    torch.testing.assert_close(weights @ found @ weights, -weights @ apart @ weights / 4)
    y = x.clone().requires_grad_()
    assert torch.autograd.grad(riesz_kernel(y, y, centre, 2.0).sum(), y)[0].isfinite().all()


def test_the_inverse_multiquadric_kernel() -> None:
    x, y = points()
    expected = 1 / (1 + (x[:, None] - y).square().sum(-1) / WIDTH**2).sqrt()
    torch.testing.assert_close(inverse_multiquadric_kernel(x, y, WIDTH), expected)
