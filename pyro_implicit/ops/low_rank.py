r"""
Densities and posteriors of a Gaussian process whose covariance has low rank.

References

- `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019. Section 3.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "lifted",
    "low_rank_log_prob",
    "posterior_by_functions",
    "posterior_by_weights",
    "weights_scale",
]


def low_rank_log_prob(rest: Tensor, factor: Tensor, diagonal: Tensor) -> Tensor:
    r"""
    The log-density of :math:`\mathcal N(0, \Phi\Phi^\top + D)` in time :math:`O(N S^2)`.

    It takes about half of what ``torch``'s own takes, which prepares more than the density.

    :param torch.Tensor rest: values less their mean, shape ``(..., *batch, N)``.
    :param torch.Tensor factor: :math:`\Phi`, shape ``(*batch, N, S)``.
    :param torch.Tensor diagonal: of ``D``, shape ``(*batch, N)``.
    :returns: shape ``(..., *batch)``.
    """
    # theory/processes.md (process-density)
    scaled = factor / diagonal[..., None]
    eye = torch.eye(factor.shape[-1]).to(factor)
    cholesky = torch.linalg.cholesky(eye + factor.mT @ scaled)
    projected = scaled.mT @ rest[..., None]
    white = torch.linalg.solve_triangular(cholesky, projected, upper=False)
    square = (rest.square() / diagonal).sum(-1) - white.square().sum((-2, -1))
    logdet = diagonal.log().sum(-1) + 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_density: Tensor = -0.5 * (rest.shape[-1] * math.log(2 * math.pi) + logdet + square)
    return log_density


def posterior_by_weights(
    here: Tensor, there: Tensor, noise: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    r"""
    The posterior at new inputs by that of the coefficients, a system of size ``S``.

    :param torch.Tensor here: :math:`\Phi` at the observations, shape ``(*batch, N, S)``.
    :param torch.Tensor there: at other inputs, shape ``(*batch, K, S)``.
    :param torch.Tensor noise: variances of the observations, shape ``(*batch, N)``.
    :param torch.Tensor rest: observations less their mean, shape ``(*batch, N)``.
    :returns: shift of the mean ``(*batch, K)`` and covariance ``(*batch, K, K)`` at the others.
    """
    # theory/processes.md (process-by-weights), Eq. 13 of Ma et al., by (process-stacked-qr)
    root = noise.sqrt()[..., None]
    q, r = _stacked_qr(here / root, torch.eye(here.shape[-1]).to(here))
    white = q[..., : here.shape[-2], :].mT @ (rest[..., None] / root)
    half = torch.linalg.solve_triangular(r.mT, there.mT, upper=False)
    return (half.mT @ white)[..., 0], half.mT @ half


def posterior_by_functions(
    here: Tensor, there: Tensor, noise: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    r"""
    The posterior at new inputs by the covariance of the observations, a system of size ``N``.

    The covariance is what is left of ``there`` outside of the span of the observations, a sum of
    squares; Eq. 12 has a difference in its place, which rounding makes negative when ``S > N`` and
    the noise is small.

    :param torch.Tensor here: :math:`\Phi` at the observations, shape ``(*batch, N, S)``.
    :param torch.Tensor there: at other inputs, shape ``(*batch, K, S)``.
    :param torch.Tensor noise: variances of the observations, shape ``(*batch, N)``.
    :param torch.Tensor rest: observations less their mean, shape ``(*batch, N)``.
    :returns: shift of the mean ``(*batch, K)`` and covariance ``(*batch, K, K)`` at the others.
    """
    # theory/processes.md (process-by-functions), Eq. 12 of Ma et al.
    q, r = _stacked_qr(here.mT, torch.diag_embed(noise.sqrt()))
    top, bottom = q[..., : here.shape[-1], :], q[..., here.shape[-1] :, :]
    cross = top.mT @ there.mT
    # the two squares of theory/processes.md (process-sum-of-squares)
    left, right = there.mT - top @ cross, bottom @ cross
    white = torch.linalg.solve_triangular(r.mT, rest[..., None], upper=False)
    return (cross.mT @ white)[..., 0], left.mT @ left + right.mT @ right


def weights_scale(factor: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    The Cholesky factor of the posterior covariance of the coefficients.

    The covariance is :math:`(I + \Phi^\top D^{-1} \Phi)^{-1}`. The inverse, whose condition is the
    square of that of the data, is never formed.

    :param torch.Tensor factor: :math:`\Phi`, shape ``(*batch, N, S)``.
    :param torch.Tensor noise: diagonal of ``D``, shape ``(*batch, N)``.
    :returns: the lower Cholesky factor, ``(*batch, S, S)``, and a matrix ``(*batch, S, N)`` that
        takes values less their mean to the mean of the coefficients.
    """
    root = noise.sqrt()[..., None]
    eye = torch.eye(factor.shape[-1]).to(factor)
    # theory/processes.md (process-weight-posterior, process-stacked-qr)
    q, r = _stacked_qr((factor / root).flip(-1), eye)
    inverse = torch.linalg.solve_triangular(r, eye, upper=True)  # upper; flipped, lower
    gain = (inverse @ q[..., : factor.shape[-2], :].mT) / root.mT
    return inverse.flip((-2, -1)), gain.flip(-2)


def _stacked_qr(upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """QR of two blocks on each other, the lower square and regular; R has a positive diagonal."""
    batch = torch.broadcast_shapes(upper.shape[:-2], lower.shape[:-2])
    blocks = [block.expand(*batch, *block.shape[-2:]) for block in (upper, lower)]
    q, r = torch.linalg.qr(torch.cat(blocks, -2))
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    sign = torch.ones_like(diagonal).where(diagonal >= 0, -1.0)
    return q * sign[..., None, :], r * sign[..., :, None]


def lifted(covariance: Tensor) -> Tensor:
    """
    Raises the diagonal of a covariance so that a rank-deficient one can be factored.

    It adds a share of each variance, far beyond the rounding of a sum of squares.

    :param torch.Tensor covariance: shape ``(..., n, n)``.
    :returns: the raised covariance, of the same shape.
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    share = max(1e-10, 50 * torch.finfo(covariance.dtype).eps)
    floor = torch.finfo(covariance.dtype).tiny ** 0.9  # for what does not vary at all
    return covariance + torch.diag_embed(share * variance + floor)
