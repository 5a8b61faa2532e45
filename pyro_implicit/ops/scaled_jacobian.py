r"""
The Jacobian of a generator in units of its output noise, as products.

Shape legend: ``...`` the batch of draws, ``d`` noise entries, ``m`` outputs, ``n = min(d, m)``,
``P`` probes.

With :math:`\tilde J = \mathrm{diag}(1/\sigma) J`,

.. math::  \tfrac12 \log\det(J J^\top + \mathrm{diag}(\sigma^2))
    = \tfrac12 \log\det A + \sum_i \log \sigma_i,

where :math:`A = I + \tilde J^\top \tilde J` if ``d <= m`` and
:math:`A = I + \tilde J \tilde J^\top` otherwise: an ``n x n`` matrix with no eigenvalue below 1
(Uppal et al. 2023, Eq. 16, divided by :math:`\sigma^2`).

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import check_scale, is_zero, upcast

__all__ = ["ScaledJacobian", "eigh_or_nan"]


class ScaledJacobian:
    r"""
    Products with a scaled Jacobian or its transpose, whichever has the smaller Gram matrix.

    :math:`M = \tilde J` if ``d <= m``, else :math:`M = \tilde J^\top`, so that :math:`A =
    \mathrm{floor} \cdot I + M^\top M` is the smaller of the two matrices.

    Without output noise nothing is divided, and ``floor`` is 0 instead of 1.

    :param Linearisation linearisation: the derivative, at a batch of draws.
    :param scale: standard deviation of the output noise: a number, or a tensor of shape ``()`` or
        ``(m,)``; products are differentiable with respect to it.
    :type scale: float or torch.Tensor
    :raises ArgumentError: for a negative scale, or 0 with ``d < m``.
    :raises ShapeError: for a scale of another shape.
    """

    def __init__(self, linearisation: Linearisation, scale: float | Tensor) -> None:
        m, d = linearisation.output_dim, linearisation.input_dim
        check_scale(scale, m, d)
        self._linearisation = linearisation
        self._transposed = d > m
        self._scale: Tensor | None = None
        self._product_dtype = linearisation.dtype
        self.device = linearisation.device
        #: at least float32, also for a generator in half precision
        self.dtype = torch.promote_types(self._product_dtype, torch.float32)
        self.batch_shape = linearisation.batch_shape
        self.size, self.other_size = min(d, m), max(d, m)
        self.floor = 0.0
        if not is_zero(scale):
            self.floor = 1.0
            if not isinstance(scale, Tensor):
                scale = torch.tensor(scale, dtype=self.dtype)
            self._scale = scale.to(self.device)
        #: one number for all outputs, by which the smaller of two vectors may be divided
        self._is_common = self._scale is not None and self._scale.dim() == 0

    def log_scale(self) -> Tensor:
        r""":returns: :math:`\sum_i \log \sigma_i` (0 without output noise), shape ``()``."""
        if self._scale is None:
            return upcast(torch.zeros((), device=self.device))
        return upcast(self._scale).log().expand(self._linearisation.output_dim).sum()

    def product(self, x: Tensor) -> Tensor:
        """
        Multiplies by ``M``.

        :param torch.Tensor x: shape ``(P, ..., n)``.
        :returns: ``M x``, shape ``(P, ..., max(d, m))``.
        """
        return self._vjp(x) if self._transposed else self._jvp(x)

    def adjoint(self, y: Tensor) -> Tensor:
        """
        Multiplies by the transpose of ``M``.

        :param torch.Tensor y: shape ``(P, ..., max(d, m))``.
        :returns: ``M' y``, shape ``(P, ..., n)``.
        """
        return self._jvp(y) if self._transposed else self._vjp(y)

    def paired(self, left: Tensor, right: Tensor) -> Tensor:
        """
        Multiplies ``M`` from both sides, with the right gradient whatever torch can differentiate.

        :param torch.Tensor left: shape ``(P, ..., max(d, m))``.
        :param torch.Tensor right: shape ``(P, ..., n)``.
        :returns: ``left' M right``, shape ``(P, ...)``.
        """
        if self._transposed or not self._linearisation.by_adjoint:
            return _dot(left, self.product(right))
        return _dot(self.adjoint(left), right)

    def squared_norm(self, x: Tensor) -> Tensor:
        """
        The squared length of a product, with the right gradient in the generator's parameters.

        :param torch.Tensor x: held fixed, shape ``(..., n)``.
        :returns: ``|M x|^2``, shape ``(...)``.
        """
        if self._transposed or not self._linearisation.by_adjoint:
            return self.product(x[None])[0].square().sum(-1)
        with torch.no_grad():
            product = self.product(x[None])
        square = product.square().sum(-1)[0]
        half_of_gradient = self.paired(product, x[None])[0]
        return square + 2 * (half_of_gradient - half_of_gradient.detach())

    @property
    def keeps(self) -> bool:
        """Whether what products meet can be kept for :meth:`pairing`."""
        return self._product_dtype == self.dtype and not self._transposed

    def kept_product(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """
        :meth:`product`, and what it met on the way.

        :param torch.Tensor x: shape ``(P, ..., n)``.
        :returns: ``M x``, shape ``(P, ..., max(d, m))``, and matrices ``(P, ..., a, b)`` of any
            sizes, all linear in ``x``.
        """
        out, kept = self._linearisation.kept_jvp(x)
        return out if self._scale is None else out / self._scale.to(self.dtype), kept

    def kept_adjoint(self, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """
        :meth:`adjoint`, and what it met on the way.

        :param torch.Tensor y: shape ``(P, ..., max(d, m))``.
        :returns: ``M' y``, shape ``(P, ..., n)``, and matrices ``(P, ..., a, b)`` of any sizes, all
            linear in ``y``.
        """
        if self._scale is not None:
            y = y / self._scale.to(self.dtype)
        return self._linearisation.kept_vjp(y)

    def pairing(
        self, left: Tensor, product: Tensor, tangents: list[Tensor], cotangents: list[Tensor]
    ) -> Tensor:
        """
        A number whose gradient is that of ``left' M right``, both held fixed.

        :param torch.Tensor left: shape ``(P, ..., max(d, m))``, without gradients.
        :param torch.Tensor product: ``M right``, of the same shape, without gradients.
        :param tangents: what :meth:`kept_product` kept of ``right``, or a combination of such:
            matrices of shapes ``(P, ..., a, b)``.
        :param cotangents: what :meth:`kept_adjoint` kept of ``left``, or a combination of such:
            matrices of shapes ``(P, ..., a, b)``.
        :returns: summed over ``P``, shape ``(...)``; its value means nothing.
        """
        if self._scale is None:
            return self._linearisation.pairing(left, tangents, cotangents)
        scale = self._scale.to(self.dtype)
        number = self._linearisation.pairing(left / scale.detach(), tangents, cotangents)
        if not scale.requires_grad:
            return number
        by_inverse = (left * product).sum(0) * scale.detach()
        return number + (by_inverse / scale).sum(-1)

    def _jvp(self, v: Tensor) -> Tensor:
        v = self._divided(v, self._is_common)
        with torch.autocast(self.device.type, enabled=False):
            out = self._linearisation.jvp(v.to(self._product_dtype)).to(self.dtype)
        return self._divided(out, not self._is_common)

    def _vjp(self, u: Tensor) -> Tensor:
        u = self._divided(u, not self._is_common)
        with torch.autocast(self.device.type, enabled=False):
            out = self._linearisation.vjp(u.to(self._product_dtype)).to(self.dtype)
        return self._divided(out, self._is_common)

    def _divided(self, x: Tensor, here: bool) -> Tensor:
        """In units of the output noise, if they are to be divided here."""
        return x / self._scale.to(self.dtype) if here and self._scale is not None else x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Of last dimensions, without a third tensor of their size."""
    return (a[..., None, :] @ b[..., None])[..., 0, 0]


def eigh_or_nan(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """
    The eigenvalues and eigenvectors of small symmetric matrices.

    They are NaN for those with entries that are not finite, where ``torch.linalg.eigh`` stops the
    program.

    :param torch.Tensor matrix: shape ``(..., n, n)``.
    :returns: eigenvalues in ascending order, shape ``(..., n)``, and eigenvectors as columns, shape
        ``(..., n, n)``.
    """
    finite = matrix.isfinite().all(-1).all(-1)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    values, vectors = torch.linalg.eigh(torch.where(finite[..., None, None], matrix, identity))
    lost = torch.where(finite, 0.0, torch.nan).to(matrix.dtype)
    return values + lost[..., None], vectors + lost[..., None, None]
