r"""
Exact log-determinants of the covariance of a linearised generator.

Shape legend: ``m`` outputs, ``d`` noise dimensions, ``...`` any batch of draws.

Everything is computed in float64 (float32 on devices that have no float64) and returned in the
dtype of the Jacobian. In float32 the Cholesky factor of :math:`J^\top J + \sigma^2 I` loses up to
0.7 nats at :math:`\sigma/s_{\max} = 10^{-4}`; in float64 the loss is below :math:`10^{-6}`.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Eq. 14 to 16.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_implicit._checks import check_number
from pyro_implicit.exceptions import ArgumentError, ShapeError

__all__ = ["half_log_det", "half_log_det_gram", "is_zero", "low_rank_half_log_det", "upcast"]


def upcast(tensor: Tensor) -> Tensor:
    """
    Widens a tensor to float64, or to float32 where the device has no float64.

    :param torch.Tensor tensor: of any shape.
    :returns: the same numbers in the same shape.
    """
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def is_zero(scale: float | Tensor) -> bool:
    """
    Whether a scale is the number 0.

    :param scale: a number, or a tensor of any shape, which never counts as zero: it may be learned.
    :returns: whether it is.
    """
    return not isinstance(scale, Tensor) and scale == 0


def half_log_det(jacobian: Tensor, scale: float | Tensor = 0.0) -> Tensor:
    r"""
    :math:`\tfrac12 \log\det(J J^\top + \mathrm{diag}(\sigma^2))`, computed on the smaller side.

    For :math:`d \le m` the determinant lemma gives :math:`\log\det(J^\top J + \sigma^2 I_d) + (m -
    d) \log \sigma^2` (Uppal et al. 2023, Eq. 16), a ``d x d`` problem.

    :param torch.Tensor jacobian: Jacobians, shape ``(..., m, d)``.
    :param scale: standard deviation of the output noise, a positive number, a tensor of shape
        ``()`` or ``(m,)``, or 0.
    :type scale: float or torch.Tensor
    :returns: one value per Jacobian, shape ``(...)``.
    :raises ArgumentError: if the scale is negative, or 0 although ``d < m``: the draws then lie on
        a surface without volume and the log-determinant is minus infinity.
    """
    m, d = jacobian.shape[-2:]
    jac = upcast(jacobian)
    check_scale(scale, m, d)
    # theory/linearised.md (log-det-small-side), Eq. 16 of Uppal et al.
    if is_zero(scale):
        if m == d:
            logdet: Tensor = torch.linalg.slogdet(jac).logabsdet.to(jacobian.dtype)
            return logdet
        return _half_log_det_spd(jac @ jac.mT).to(jacobian.dtype)
    if d <= m:
        gram = _whitened_gram(jac, scale)
        return half_log_det_gram(gram, scale, m).to(jacobian.dtype)
    sigma = torch.as_tensor(scale, dtype=jac.dtype, device=jac.device).expand(m)
    return _half_log_det_spd(jac @ jac.mT + torch.diag(sigma**2)).to(jacobian.dtype)


def half_log_det_gram(gram: Tensor, scale: float | Tensor, m: int) -> Tensor:
    r"""
    What :func:`half_log_det` computes, from the Gram matrix of the Jacobian.

    With :math:`G = J^\top \mathrm{diag}(\sigma^{-2}) J` it is :math:`\tfrac12 \log\det(I_d + G) +
    \sum_i \log \sigma_i`.

    :param torch.Tensor gram: shape ``(..., d, d)``.
    :param scale: positive, a number or a tensor of shape ``()`` or ``(m,)``.
    :param int m: number of outputs.
    :returns: shape ``(...)``, in the dtype of ``gram``.
    """
    sigma = torch.as_tensor(scale, dtype=gram.dtype, device=gram.device)
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # theory/linearised.md (log-det-scaled)
    return _half_log_det_spd(gram + identity) + sigma.log().expand(m).sum()


def low_rank_half_log_det(
    diagonal: Tensor, left: Tensor, right: Tensor, scale: float | Tensor = 0.0
) -> Tensor:
    r"""
    Half a log-determinant for a square Jacobian of diagonal plus low rank.

    :math:`\tfrac12 \log\det(J J^\top + \mathrm{diag}(\sigma^2))` for :math:`J = \mathrm{diag}(s) +
    U V` of rank-``h`` correction, in :math:`O(m h^2)`.

    Without noise it is :math:`\sum \log|s_i| + \log|\det(I_h + V \mathrm{diag}(1/s) U)|`; with
    noise the same lemma is applied to :math:`J J^\top`, whose correction has rank ``2 h``.

    :param torch.Tensor diagonal: ``s``, shape ``(m,)``, no entry zero.
    :param torch.Tensor left: ``U``, shape ``(m, h)``.
    :param torch.Tensor right: ``V``, shape ``(..., h, m)``.
    :param scale: as in :func:`half_log_det`: 0, a positive number, or shape ``()`` or ``(m,)``.
    :returns: shape ``(...)``.
    :raises ArgumentError: if the scale is negative.
    :raises ShapeError: for a scale of another shape.
    """
    dtype = right.dtype
    s, u, v = upcast(diagonal), upcast(left), upcast(right)
    h = u.shape[-1]
    check_scale(scale, s.shape[-1], s.shape[-1])
    identity = torch.eye(h, dtype=s.dtype, device=s.device)
    # without and with noise: theory/linearised.md (low-rank-determinant)
    if is_zero(scale):
        inner = identity + (v / s) @ u
        noiseless: Tensor = s.abs().log().sum() + torch.linalg.slogdet(inner).logabsdet
        return noiseless.to(dtype)
    sigma = torch.as_tensor(scale, dtype=s.dtype, device=s.device)
    base = s**2 + sigma**2
    columns = torch.cat([u.expand(*v.shape[:-2], *u.shape), (v * s).mT], dim=-1)  # (..., m, 2h)
    middle = torch.cat(
        [torch.cat([v @ v.mT, identity.expand(*v.shape[:-2], h, h)], -1), _pad(identity, v)], -2
    )
    inner = torch.eye(2 * h, dtype=s.dtype, device=s.device) + middle @ (
        columns.mT @ (columns / base[:, None])
    )
    logdet: Tensor = base.log().sum() + torch.linalg.slogdet(inner).logabsdet
    return (0.5 * logdet).to(dtype)


def check_scale(scale: float | Tensor, m: int, d: int) -> None:
    """
    Raises unless ``scale`` is usable for ``m`` outputs and ``d`` noise dimensions.

    :raises ArgumentError: for a negative number, or 0 with ``d < m``.
    :raises ShapeError: for a tensor whose shape is neither ``()`` nor ``(m,)``.
    """
    if isinstance(scale, Tensor) and scale.is_floating_point():
        if scale.shape not in ((), (m,)):
            raise ShapeError(f"scale has shape {tuple(scale.shape)}; expected () or ({m},).")
        return
    if not (type(scale) is float and 0 <= scale < math.inf):  # at every draw: the usual case first
        scale = check_number("scale", scale, minimum=0, why=" (a standard deviation)")
    if scale == 0 and d < m:
        raise ArgumentError(
            f"scale=0 with {d} noise dimensions for {m} outputs: the draws fill no volume and "
            "their entropy is minus infinity. Write scale=0.01 (or learn_scale='scalar'), or "
            f"give the generator at least {m} noise dimensions."
        )


def _pad(identity: Tensor, v: Tensor) -> Tensor:
    """The lower half ``[I, 0]`` of the middle matrix, for the batch of ``v``."""
    lower = torch.cat([identity, torch.zeros_like(identity)], -1)
    return lower.expand(*v.shape[:-2], *lower.shape)


def _whitened_gram(jac: Tensor, scale: float | Tensor) -> Tensor:
    """``J' diag(scale^-2) J``, shape ``(..., d, d)``."""
    sigma = torch.as_tensor(scale, dtype=jac.dtype, device=jac.device)
    white = jac / (sigma[:, None] if sigma.dim() else sigma)
    return white.mT @ white


def _half_log_det_spd(matrix: Tensor) -> Tensor:
    """
    Half the log-determinant of symmetric positive-definite matrices ``(..., n, n)``.

    It is minus infinity for a singular one and NaN for one that has NaN, so that an objective can
    name the site.
    """
    factor, failed_at = torch.linalg.cholesky_ex(matrix)
    value = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    lost = matrix.detach().sum((-2, -1)) * 0 - torch.inf
    return torch.where(failed_at > 0, lost, value)
