r"""
Ratios of two densities from draws alone: a ridge regression on Gaussian kernels.

References

- `Kernel Implicit Variational Inference`, J. Shi, S. Sun, J. Zhu, ICLR 2018. Eq. 3 and 4.
- `A Least-squares Approach to Direct Importance Estimation`, T. Kanamori, S. Hido, M. Sugiyama,
  JMLR 10, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_number
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.ops.kernels import gaussian_kernel, squared_distances, typical_distance

__all__ = ["DensityRatio", "bandwidths", "fit_density_ratio", "kl_divergence"]


@dataclass(frozen=True)
class DensityRatio:
    r"""
    A fitted ratio :math:`r(x) = \sum_k \alpha_k \exp(-\lVert x - c_k \rVert^2 / 2 h^2)`.

    :param torch.Tensor centres: ``c``, shape ``(k, m)``.
    :param torch.Tensor bandwidth: ``h``, shape ``()``, or ``(k,)`` for one per centre.
    :param torch.Tensor weights: ``alpha``, shape ``(k,)``.
    """

    centres: Tensor
    bandwidth: Tensor
    weights: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """
        The fitted ratios at some points.

        :param torch.Tensor x: points, shape ``(n, m)``.
        :returns: fitted ratios, shape ``(n,)``. A fit can be negative.
        """
        # theory/ratios.md (ratio-model)
        return gaussian_kernel(x, self.centres, self.bandwidth) @ self.weights

    def log(self, x: Tensor, clip: float = 1e-8) -> tuple[Tensor, Tensor]:
        """
        The logarithm of the fitted ratios, clipped from below.

        :param torch.Tensor x: points, shape ``(n, m)``.
        :param float clip: smallest ratio; a clipped point has no gradient.
        :returns: the log of the clipped ratios, shape ``(n,)``, and the fraction of them that was
            clipped, shape ``()``.
        """
        ratio = self(x)  # theory/ratios.md (ratio-estimate)
        return ratio.clamp(min=clip).log(), (ratio.detach() < clip).to(ratio).mean()


def fit_density_ratio(
    numerator: Tensor,
    denominator: Tensor,
    centres: Tensor,
    *,
    bandwidth: float | Sequence[float] = 1.0,
    ridge: float = 1e-2,
) -> DensityRatio:
    r"""
    Fits the ratio of two densities to draws of both, in least squares over the denominator.

    :math:`\alpha = (H + \lambda I)^{-1} h` with ``H`` the mean of :math:`\psi \psi^\top` over the
    denominator and ``h`` that of :math:`\psi` over the numerator (Shi, Sun and Zhu 2018, below
    Eq. 4, whose linear term has the wrong sign). Solved in float64; no gradient flows through the
    fit.

    :param torch.Tensor numerator: draws, shape ``(n, m)``.
    :param torch.Tensor denominator: draws, shape ``(k, m)``.
    :param torch.Tensor centres: centres of the kernels, shape ``(b, m)``.
    :param bandwidth: in units of the median distance of all draws to the centres; several are dealt
        out to the centres in turns.
    :param float ridge: ``lambda > 0``.
    :returns: the ratio, a function of points.
    :raises ShapeError: unless all three are matrices of equally many columns.
    :raises ArgumentError: for a bandwidth or ridge that is not positive.
    """
    sets = (numerator, denominator, centres)
    if any(x.dim() != 2 or not len(x) for x in sets) or len({x.shape[1] for x in sets}) > 1:
        raise ShapeError(
            f"draws and centres of shapes {[tuple(x.shape) for x in sets]}; expected three "
            "matrices with a row per draw and equally many columns."
        )
    widths = bandwidths(bandwidth)
    ridge = check_number("ridge", ridge, above=0)
    with torch.no_grad():
        # once for the width and both kernels: with many columns this is all the work
        squares = torch.cat(
            [squared_distances(x, centres, torch.float64) for x in (numerator, denominator)]
        )
        width = squares.new_tensor(widths) * typical_distance(squares)
        turns = torch.arange(len(centres), device=centres.device) % len(widths)
        width = width[0] if len(widths) == 1 else width[turns]
        # H and h: theory/ratios.md (ratio-regression), Eq. 3 of Shi et al.
        above, psi = (squares / (-2 * width**2)).exp().split([len(numerator), len(denominator)])
        gram = psi.mT @ psi / len(psi)
        gram.diagonal().add_(ridge)
        mean = above.mean(0)
        # alpha: theory/ratios.md (ratio-solution)
        weights = torch.cholesky_solve(mean[:, None], torch.linalg.cholesky(gram))[:, 0]
    return DensityRatio(centres.detach(), width.to(centres), weights.to(centres))


def bandwidths(bandwidth: float | Sequence[float]) -> tuple[float, ...]:
    """
    One or several widths as a tuple.

    :param bandwidth: a positive number, or a list or tuple of them.
    :returns: the widths.
    :raises ArgumentError: for none, or one that is not a positive number.
    """
    several = isinstance(bandwidth, (list, tuple))
    if several and not bandwidth:
        raise ArgumentError(f"bandwidth={bandwidth}; expected a positive number, or several.")
    why = ", or several, such as (0.1, 0.3, 1.0)"
    widths = bandwidth if isinstance(bandwidth, (list, tuple)) else (bandwidth,)
    return tuple(check_number("bandwidth", width, above=0, why=why) for width in widths)


def kl_divergence(
    q: Tensor,
    p: Tensor,
    *,
    orientation: str = "q/p",
    bases: str = "q",
    num_bases: int = 100,
    bandwidth: float | Sequence[float] = 1.0,
    ridge: float = 1e-2,
    clip: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    r"""
    ``KL(q || p)`` from draws of both: the mean over ``q`` of the fitted log-ratio.

    The value is no bound and, in more than a few dimensions, far too small unless ``q`` and ``p``
    are alike. Gradients reach ``q`` through the points at which the ratio is taken, not through
    the fit (whose part has mean zero at a perfect one).

    :param torch.Tensor q: draws, shape ``(n, m)``.
    :param torch.Tensor p: draws, shape ``(k, m)``.
    :param str orientation: the ratio that is fitted: ``"q/p"``, or ``"p/q"`` as in Shi, Sun and Zhu
        2018, whose value depends on the clip wherever ``q`` is narrower than ``p``.
    :param str bases: the draws that kernels are centred on, ``"q"`` or ``"p"``: the first
        ``num_bases`` of them.
    :param int num_bases: number of kernels at most.
    :param bandwidth: see :func:`fit_density_ratio`.
    :param float ridge: see :func:`fit_density_ratio`.
    :param float clip: see :meth:`DensityRatio.log`.
    :returns: the estimate and the fraction of draws whose ratio was clipped, both of shape ``()``.
    :raises ArgumentError: for any other orientation or bases.
    """
    if orientation not in ("q/p", "p/q") or bases not in ("q", "p"):
        raise ArgumentError(
            f"orientation={orientation!r}, bases={bases!r}; expected 'q/p' or 'p/q', 'q' or 'p'."
        )
    # theory/ratios.md (ratio-divergence); the fit is held fixed while q moves
    centres = (q if bases == "q" else p)[:num_bases].detach()
    options: dict[str, Any] = {"bandwidth": bandwidth, "ridge": ridge}
    if orientation == "q/p":
        log_ratio, clipped = fit_density_ratio(q, p, centres, **options).log(q, clip)
        return log_ratio.mean(), clipped
    log_ratio, clipped = fit_density_ratio(p, q, centres, **options).log(q, clip)
    return -log_ratio.mean(), clipped
