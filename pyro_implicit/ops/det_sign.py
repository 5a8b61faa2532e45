"""The sign of a determinant where it is certain."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.ops.logdet import is_zero, upcast

__all__ = ["det_sign"]

# Errors that a row of the matrix is allowed for.
_ROUNDING_ERROR_IN_EPS = 100  # relative, in epsilons of the dtype that it was computed in
_ERROR_IN_NOISE_SDS = 10  # absolute, where there is output noise


def det_sign(matrix: Tensor, scale: float | Tensor = 0.0) -> Tensor:
    r"""
    The sign of the determinant of square matrices, where no small error can have turned it.

    With :math:`f_i` the length of the error that row ``i`` may have, a sign counts if
    :math:`\lVert (\mathrm{diag}(1/f)\, J)^{-1} \rVert_F < 1`: the least singular value in units of
    the errors is then above 1. Rounding is allowed 100 units in the last place of a row's length;
    output noise ten standard deviations, below which it hides how a draw depends on the noise.

    :param torch.Tensor matrix: Jacobians, shape ``(..., m, d)``.
    :param scale: standard deviation of the output noise, a number or shape ``()`` or ``(m,)``.
    :returns: 1, -1, or 0 where the sign is not certain or ``d`` is not ``m``; shape ``(...)``.
    """
    m, d = matrix.shape[-2:]
    wide = upcast(matrix)
    if m != d:
        return wide.new_zeros(wide.shape[:-2])
    floor = _ROUNDING_ERROR_IN_EPS * torch.finfo(matrix.dtype).eps * wide.norm(dim=-1)
    if not is_zero(scale):
        noise = torch.as_tensor(scale, dtype=wide.dtype, device=wide.device)
        floor = torch.maximum(floor, (_ERROR_IN_NOISE_SDS * noise).expand(m))
    usable = wide.isfinite().all(-1).all(-1) & (floor > 0).all(-1)
    identity = torch.eye(m, dtype=wide.dtype, device=wide.device)
    units = wide / floor.clamp(min=torch.finfo(wide.dtype).tiny)[..., None]
    units = torch.where(usable[..., None, None], units, identity)
    inverse, failed = torch.linalg.inv_ex(units)
    smallest = torch.linalg.matrix_norm(inverse).reciprocal()  # at most the least singular value
    certain = usable & (failed == 0) & (smallest > 1)
    return torch.where(certain, torch.linalg.slogdet(units).sign, 0.0)
