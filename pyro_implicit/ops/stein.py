r"""
The kernel Stein discrepancy: how far draws are from a density known by its score alone.

Shape legend: ``n`` draws, ``m`` entries, ``B`` bootstrap replicates.

References

- `A Kernelized Stein Discrepancy for Goodness-of-fit Tests`, Q. Liu, J. Lee, M. Jordan, ICML
  2016.
- `Measuring Sample Quality with Kernels`, J. Gorham, L. Mackey, ICML 2017 (why this kernel).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.ops.kernels import squared_distances

__all__ = ["bootstrap_null", "stein_matrix", "stein_u_statistic"]


def stein_matrix(
    draws: Tensor, scores: Tensor, length: Tensor | float = 1.0, beta: float = -0.5
) -> Tensor:
    r"""
    The Stein kernel at all pairs of draws.

    It is that of :math:`k(x, y) = (1 + \lVert x - y \rVert^2 / \ell^2)^\beta` and the score
    :math:`s = \nabla \log p`:

    .. math::  k(x, y)\, s(x)^\top s(y) + s(x)^\top \nabla_y k + s(y)^\top \nabla_x k
        + \operatorname{tr} \nabla_x \nabla_y k .

    Its mean over independent ``x`` and ``y`` from ``p`` is 0, and over draws from any other
    distribution positive, under mild conditions. With this kernel and :math:`-1 < \beta < 0` it
    detects draws that do not converge, where Gaussian kernels fail from three dimensions on (Gorham
    and Mackey 2017).

    :param torch.Tensor draws: shape ``(n, m)``.
    :param torch.Tensor scores: of ``p`` at the draws, shape ``(n, m)``.
    :param length: :math:`\ell > 0`, a number or shape ``()``.
    :param float beta: between -1 and 0.
    :returns: shape ``(n, n)``, symmetric.
    """
    m = draws.shape[-1]
    x = draws / length
    s = scores * length  # the score in the units of x
    squares = squared_distances(x, x)
    q = 1 + squares
    inner = s @ s.mT
    along = s @ x.mT  # [i, j]: s_i' x_j
    own = (s * x).sum(-1)
    # theory/scores.md (stein-kernel, stein-kernel-imq)
    difference = own[:, None] - along + own - along.mT  # (s_i - s_j)' (x_i - x_j)
    cross = -2 * beta * q ** (beta - 1) * difference
    trace = -2 * beta * m * q ** (beta - 1) - 4 * beta * (beta - 1) * q ** (beta - 2) * squares
    return (q**beta * inner + cross + trace) / length**2


def stein_u_statistic(matrix: Tensor) -> Tensor:
    """
    Estimates the squared Stein discrepancy without bias.

    :param torch.Tensor matrix: from :func:`stein_matrix`, shape ``(n, n)``, ``n >= 2``.
    :returns: the mean over all pairs of different draws, shape ``()``: unbiased for the squared
        discrepancy, and so negative at times.
    """
    n = len(matrix)
    return (matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))


def bootstrap_null(matrix: Tensor, num_bootstrap: int) -> Tensor:
    r"""
    Replicates the statistic as it is distributed where the draws are right.

    :math:`\sum_{i \ne j} (w_i - \tfrac1n)(w_j - \tfrac1n)\, \kappa_{ij}` with multinomial weights,
    times :math:`n / (n - 1)` as the statistic is (Liu, Lee and Jordan 2016, Eq. 15).

    :param torch.Tensor matrix: from :func:`stein_matrix`, shape ``(n, n)``.
    :param int num_bootstrap: ``B``.
    :returns: shape ``(B,)``.
    """
    n = len(matrix)
    uniform = torch.full((num_bootstrap, n), 1.0 / n, dtype=matrix.dtype, device=matrix.device)
    chosen = torch.multinomial(uniform, n, replacement=True)
    ones = torch.ones_like(chosen, dtype=matrix.dtype)
    weights = torch.zeros_like(uniform).scatter_add_(1, chosen, ones) / n - 1.0 / n
    # theory/scores.md (stein-bootstrap), Eq. 15 of Liu et al.
    off_diagonal = matrix - torch.diag(matrix.diagonal())
    return ((weights @ off_diagonal) * weights).sum(-1) * n / (n - 1)
