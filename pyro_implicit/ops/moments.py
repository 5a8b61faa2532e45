r"""
The Gaussian with the moments of some draws, and the draws in its coordinates.

References

- `Adversarial Variational Bayes`, L. Mescheder, S. Nowozin, A. Geiger, ICML 2017, section 3.3
  (adaptive contrast).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.ops.logdet import upcast

__all__ = ["draws_in_factors", "standardise"]


def standardise(draws: Tensor, covariance: str = "diagonal") -> tuple[Tensor, Tensor]:
    r"""
    Standardises draws: mean 0 and unit covariance, as the Gaussian they are compared with.

    Its entropy comes with them: for :math:`\theta = \mu + L u` and any density ``q``,

    .. math::  \mathbb H[q] = \mathbb H[\mathcal N(\mu, L L^\top)] - KL(q_u \,\|\, \mathcal N(0, I))

    if ``q`` has these moments. Both results are differentiable with respect to the draws. The
    entropy is unbiased for Gaussian draws: the mean of the log-determinant of a Wishart matrix is
    known, and its excess over that of its mean is taken off.

    :param torch.Tensor draws: shape ``(n, m)``.
    :param str covariance: ``"diagonal"`` or ``"full"``. Whitening by a full covariance of ``n``
        draws hides about ``m (m + 1) / 4n`` nats of the divergence.
    :returns: standardised draws, shape ``(n, m)``, and the entropy, shape ``()``.
    :raises ArgumentError: for any other ``covariance``.
    :raises NonFiniteError: for draws on a surface, whose full covariance is singular.
    :raises ShapeError: for fewer than two draws, or no more than ``m`` with a full covariance.
    """
    if covariance not in ("diagonal", "full"):
        raise ArgumentError(f"covariance={covariance!r}; expected 'diagonal' or 'full'.")
    n, m = draws.shape
    needed = 2 if covariance == "diagonal" else m + 1
    if n < needed:
        raise ShapeError(
            f"{n} draws of {m} entries; a {covariance} covariance needs at least {needed}."
        )
    wide = upcast(draws)
    centred = wide - wide.mean(0)
    freedom = torch.full((m,), n - 1.0, dtype=wide.dtype, device=wide.device)
    if covariance == "diagonal":
        scale = (centred.square().sum(0) / (n - 1)).clamp(min=torch.finfo(wide.dtype).tiny).sqrt()
        log_det, u = scale.log().sum(), centred / scale
    else:
        factor, failed = torch.linalg.cholesky_ex(centred.mT @ centred / (n - 1))
        if bool(failed):
            raise NonFiniteError(
                f"the covariance of {n} draws of {m} entries is singular: they lie on a surface. "
                "Use covariance='diagonal', or give the guide a scale."
            )
        log_det = factor.diagonal().log().sum()
        u = torch.linalg.solve_triangular(factor, centred.mT, upper=False).mT
        freedom = freedom - torch.arange(m, dtype=wide.dtype, device=wide.device)
    # theory/ratios.md (moment-bias, adaptive-entropy)
    excess = 0.5 * (torch.digamma(freedom / 2) - math.log((n - 1) / 2)).sum()
    entropy = 0.5 * m * (1 + math.log(2 * math.pi)) + log_det - excess
    return u.to(draws), entropy.to(draws)


def draws_in_factors(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    r"""
    A covariance as a few directions and a diagonal, with its own variances.

    :math:`X^\top X \approx W W^\top + D` with ``W`` the leading principal directions, and ``D``
    what each variance lacks (a hundredth of it at least, at the directions' expense: ``D`` is to be
    inverted).

    :param torch.Tensor rows: ``X``, such as centred draws over the root of their number, shape
        ``(n, m)``.
    :param int rank: most directions; no more than ``n`` and ``m`` are taken.
    :returns: ``W``, shape ``(m, r)``, and the square root of ``D``, shape ``(m,)``.
    """
    wide = upcast(rows)
    variance = wide.square().sum(0)
    if len(wide) < wide.shape[1]:  # by the smaller of two matrices of products
        _, vectors = torch.linalg.eigh(wide @ wide.mT)
        factor = wide.mT @ vectors[:, -rank:]
    else:
        values, vectors = torch.linalg.eigh(wide.mT @ wide)
        factor = vectors[:, -rank:] * values[-rank:].clamp(min=0.0).sqrt()
    # theory/after.md (prior-from-low-rank)
    held = factor.square().sum(-1)
    shrink = torch.where(held > 0.99 * variance, (0.99 * variance / held.clamp(min=1e-300)), 1.0)
    factor = factor * shrink.sqrt().unsqueeze(-1)
    rest = (variance - factor.square().sum(-1)).sqrt()
    return factor.to(rows), rest.to(rows)
