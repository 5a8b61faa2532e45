r"""
The difference of the scores of a guide and of a posterior, as kernels see it.

Shape legend: ``n`` draws, ``m`` entries; :math:`\delta_i` the difference at a draw of the score of
its own conditional, or of the guide, and that of the posterior.

References

- `Stein Variational Gradient Descent`, Q. Liu, D. Wang, NeurIPS 2016.
- `Kernel Semi-Implicit Variational Inference`, Z. Cheng and others, ICML 2024.
- `Semi-Implicit Variational Inference via Kernelized Path Gradient Descent`, T. Pielok, B. Bischl,
  D. Ruegamer, AISTATS 2026.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.ops.kernels import (
    gaussian_kernel,
    inverse_multiquadric_kernel,
    squared_distances,
)

__all__ = [
    "smoothed",
    "smoothing_weights",
    "squared_discrepancy",
    "stein_smoothed",
    "stein_squared_discrepancy",
]


def squared_discrepancy(kernel: Tensor, difference: Tensor, estimator: str) -> Tensor:
    r"""
    The mean of :math:`k(x_i, x_j)\, \delta_i^\top \delta_j` over pairs of different draws.

    With independent draws and a kernel that does not depend on them it is unbiased for
    :math:`\mathbb E\, k(x, x')\, \delta(x)^\top \delta(x')` with independent ``x`` and ``x'``, the
    squared kernel Stein discrepancy of guide and posterior.

    :param torch.Tensor kernel: of all pairs of draws, shape ``(n, n)``.
    :param torch.Tensor difference: shape ``(n, m)``, ``n >= 2``.
    :param str estimator: ``"u-statistic"``, all pairs of different draws; or ``"two batches"``, the
        first half of the draws with the second.
    :returns: shape ``()``.
    """
    n = len(difference)  # theory/scores.md (ksivi-estimate)
    if estimator == "two batches":
        half = n // 2
        pairs = difference[:half] @ difference[half:].mT
        return (kernel[:half, half:] * pairs).mean()
    pairs = kernel * (difference @ difference.mT)
    return (pairs.sum() - pairs.diagonal().sum()) / (n * (n - 1))


def smoothed(kernel: Tensor, difference: Tensor) -> Tensor:
    r"""
    :math:`\tfrac1{n-1} \sum_{j \ne i} k(x_i, x_j)\, \delta_j` at every draw.

    A draw is left out of its own mean: its conditional's score goes with its own noise.

    :param torch.Tensor kernel: shape ``(n, n)``.
    :param torch.Tensor difference: shape ``(n, m)``, ``n >= 2``.
    :returns: shape ``(n, m)``.
    """
    own = kernel.diagonal()[:, None] * difference  # theory/scores.md (kpg-direction)
    return (kernel @ difference - own) / (len(difference) - 1)


def smoothing_weights(log_kernel: Tensor, log_density: Tensor) -> Tensor:
    r"""
    Weights that turn a mean over the guide's draws into one around a draw.

    :math:`w_{ij} \propto k(x_i, x_j) / q(x_j)`, ``j != i``, adding up to 1 for each ``i``:
    :math:`\sum_j w_{ij} f(x_j)` tends with the number of draws to the mean of ``f`` under the
    kernel around :math:`x_i`, whatever the density of the draws.

    :param torch.Tensor log_kernel: shape ``(n, n)``.
    :param torch.Tensor log_density: of the guide at each draw, shape ``(n,)``.
    :returns: shape ``(n, n)``, with 0 on the diagonal.
    """
    log_weights = log_kernel - log_density  # theory/scores.md (kpg-importance)
    return log_weights.fill_diagonal_(-torch.inf).softmax(-1)


def _radial(kind: str, x: Tensor, bandwidth: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    r"""
    A kernel with its derivatives at all pairs of points.

    :returns: ``k``; the ``r`` of :math:`\nabla_{x_j} k(x_i, x_j) = r_{ij} (x_i - x_j)`; and
        :math:`\operatorname{tr} \nabla_{x_i} \nabla_{x_j} k`, each of shape ``(n, n)``.
    """
    squares, m = squared_distances(x, x) / bandwidth**2, x.shape[-1]
    if kind == "gaussian":
        kernel = gaussian_kernel(x, x, bandwidth)
        slope, bend = kernel, kernel
    else:
        kernel = inverse_multiquadric_kernel(x, x, bandwidth)
        slope, bend = kernel**3, 3 * kernel**5
    return kernel, slope / bandwidth**2, (m * slope - bend * squares) / bandwidth**2


def _repulsion(slope: Tensor, x: Tensor) -> Tensor:
    r""":math:`\tfrac1{n-1} \sum_j \nabla_{x_j} k(x_i, x_j)`, shape ``(n, m)``."""
    return (slope.sum(-1, keepdim=True) * x - slope @ x) / (len(x) - 1)


def stein_smoothed(kind: str, x: Tensor, score: Tensor, bandwidth: Tensor | float) -> Tensor:
    r"""
    What :func:`smoothed` estimates, without a score of the guide.

    By Stein's identity :math:`\mathbb E[k(x, x') \nabla \log q(x')] = -\mathbb E[\nabla_{x'} k]`,
    so that it is :math:`-\tfrac1{n-1} \sum_{j \ne i} k(x_i, x_j) s_p(x_j) + \nabla_{x_j} k(x_i,
    x_j)`: minus the direction of Stein variational gradient descent, each draw left out of its own
    mean.

    :param str kind: ``"gaussian"`` or ``"imq"``.
    :param torch.Tensor x: draws, shape ``(n, m)``, ``n >= 2``.
    :param torch.Tensor score: of the posterior there, shape ``(n, m)``.
    :param bandwidth: ``h > 0``, a number or shape ``()``.
    :returns: shape ``(n, m)``.
    """
    kernel, slope, _ = _radial(kind, x, bandwidth)  # theory/scores.md (svgd-direction)
    return smoothed(kernel, -score) - _repulsion(slope, x)


def stein_squared_discrepancy(
    kind: str, x: Tensor, score: Tensor, bandwidth: Tensor | float
) -> Tensor:
    r"""
    What :func:`squared_discrepancy` estimates, without a score of the guide.

    It is the mean over pairs of different draws of the Stein kernel of :func:`stein_smoothed`'s
    kernel.

    :param str kind: ``"gaussian"`` or ``"imq"``.
    :param torch.Tensor x: draws, shape ``(n, m)``, ``n >= 2``.
    :param torch.Tensor score: of the posterior there, shape ``(n, m)``.
    :param bandwidth: ``h > 0``, a number or shape ``()``.
    :returns: shape ``()``.
    """
    kernel, slope, trace = _radial(kind, x, bandwidth)  # theory/scores.md (stein-kernel)
    n = len(x)
    bends = (trace.sum() - trace.diagonal().sum()) / (n * (n - 1))
    along = (score * _repulsion(slope, x)).sum(-1).mean()
    return squared_discrepancy(kernel, score, "u-statistic") + 2 * along + bends
