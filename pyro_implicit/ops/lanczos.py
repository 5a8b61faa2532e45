r"""
Log-determinants by stochastic Lanczos quadrature, from products alone and from both sides.

Shape legend: ``...`` the batch of draws, ``n`` the smaller side of the Jacobian, ``P`` probes,
``k`` steps.

For :math:`A = I + M^\top M` (:class:`~pyro_implicit.ops.whitened.WhitenedJacobian`) and random
``v`` with :math:`\mathbb E\, v v^\top = I`, :math:`\log\det A = \mathbb E\, v^\top \log(A)\, v`.
Golub and Kahan's bidiagonalisation of ``M``, which is the Lanczos process of :math:`M^\top M`
without its squared rounding errors, turns each quadratic form into a quadrature rule. The Gauss
rule is never below it; the Gauss-Radau rule with a node at 1, below which ``A`` has no eigenvalue
(:math:`\sigma^2` in the units of :math:`J J^\top + \sigma^2 I`), is never above it [1].

References

[1] `Matrices, Moments and Quadrature with Applications`, G. H. Golub, G. Meurant, 2010. Chapters 3,
    4, 6 and 11.
[2] `Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature`, S. Ubaru, J. Chen, Y. Saad,
    SIAM Journal on Matrix Analysis and Applications, 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.ops.logdet import upcast
from pyro_implicit.ops.whitened import WhitenedJacobian, eigh_or_nan

__all__ = ["PROBES", "LanczosQuadrature", "draw_probes", "gradient_surrogate", "lanczos_quadrature"]

#: kinds of probes, see :func:`draw_probes`
PROBES = ("orthogonal", "rademacher")


@dataclass(frozen=True)
class LanczosQuadrature:
    r"""
    What one run of the process gives for each probe ``v``.

    :param torch.Tensor gauss: upper bound of :math:`v^\top \log(A)\, v`, shape ``(P, ...)``.
    :param torch.Tensor radau: lower bound of it, same shape; minus infinity without output noise.
    :param torch.Tensor inverse_root: :math:`A^{-1/2} v`, shape ``(P, ..., n)``.
    """

    gauss: Tensor
    radau: Tensor
    inverse_root: Tensor


def draw_probes(kind: str, num_probes: int, jacobian: WhitenedJacobian) -> Tensor:
    r"""
    Random vectors with :math:`\mathbb E\, v v^\top = I`, of their own for each draw.

    Both kinds have length :math:`\sqrt n`, so that a multiple of the identity has no spread.
    Gaussian vectors, whose length varies, had six times the spread and are not offered. With one
    probe the two kinds do equally well; ``n`` or more orthogonal ones have no spread at all.

    :param str kind: ``"orthogonal"``: uniform directions, every ``n`` of them orthogonal to each
        other; or ``"rademacher"``: independent random signs.
    :param int num_probes: ``P``.
    :param WhitenedJacobian jacobian: gives shapes, dtype and device.
    :returns: shape ``(P, ..., n)``.
    :raises ArgumentError: for another kind.
    """
    if kind not in PROBES:
        raise ArgumentError(f"probes={kind!r}; expected one of {', '.join(PROBES)}.")
    shape = (num_probes, *jacobian.batch_shape, jacobian.size)
    noise = torch.randn(shape, dtype=jacobian.dtype, device=jacobian.device)
    if kind == "rademacher":
        return torch.where(noise < 0, -torch.ones_like(noise), 1.0)
    blocks = [_orthonormal(block) for block in noise.split(jacobian.size)]
    return jacobian.size**0.5 * torch.cat(blocks)


def _orthonormal(gaussian: Tensor) -> Tensor:
    """Orthonormal vectors of uniform direction from ``p <= n`` Gaussian ones, ``(p, ..., n)``."""
    if len(gaussian) == 1:
        return gaussian / torch.linalg.vector_norm(gaussian, dim=-1, keepdim=True)
    q, r = torch.linalg.qr(gaussian.movedim(0, -1))
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return (q * signs[..., None, :]).movedim(-1, 0)


def lanczos_quadrature(
    jacobian: WhitenedJacobian, probes: Tensor, num_steps: int
) -> LanczosQuadrature:
    r"""
    Both rules and the inverse square root, from ``num_steps`` products with :math:`M^\top M`.

    The bidiagonal ``B`` of ``k`` steps gives the Gauss rule as
    :math:`\|v\|^2 e_1^\top \log(I + B^\top B)\, e_1`. With its last off-diagonal entry, as a
    ``k x (k+1)`` matrix, the same formula is the Gauss-Radau rule: that matrix has a singular value
    0, hence a node at 1. The small problems are solved in float64. Exact for ``k = n``, and earlier
    where the Krylov space is exhausted (as many steps as there are different singular values).

    Cost: ``num_steps`` products with ``M`` and as many with its transpose, and
    :math:`O(k^2 n)` operations for orthogonalisation.

    :param WhitenedJacobian jacobian: ``M``.
    :param torch.Tensor probes: shape ``(P, ..., n)``.
    :param int num_steps: ``k``; at most ``n`` are taken.
    :returns: no gradients are tracked; see :func:`gradient_surrogate`.
    """
    with torch.no_grad(), torch.autocast(jacobian.device.type, enabled=False):
        return _quadrature(jacobian, probes, min(num_steps, jacobian.size))


def _quadrature(jacobian: WhitenedJacobian, probes: Tensor, num_steps: int) -> LanczosQuadrature:
    basis, diagonal, above = _bidiagonalise(jacobian, probes, num_steps)
    square = upcast(probes).square().sum(-1)
    gauss_nodes = torch.cat([above[..., :-1], torch.zeros_like(above[..., -1:])], -1)
    values, vectors = _eigen(diagonal, torch.stack([gauss_nodes, above]), jacobian.floor)
    weights = vectors[..., 0, :]
    gauss, radau = square * (weights.square() * values.log()).sum(-1)
    if jacobian.floor == 0:
        radau = torch.full_like(radau, -torch.inf)
    coefficients = vectors[0] @ (weights[0] / values[0].sqrt())[..., None]
    coefficients = coefficients[..., : len(basis), 0] * square.sqrt()[..., None]
    root = torch.einsum("k...n,...k->...n", basis, coefficients.to(basis.dtype))
    return LanczosQuadrature(gauss, radau, root)


def gradient_surrogate(jacobian: WhitenedJacobian, inverse_root: Tensor) -> Tensor:
    r"""
    A number whose gradient estimates that of :math:`\tfrac12 \log\det A` without bias, and whose
    value means nothing: :math:`\tfrac12 \|M w\|^2` with :math:`w = A^{-1/2} v` held fixed, since

    .. math::  \tfrac12\, d \log\det A = \tfrac12 \operatorname{tr}(A^{-1} dA)
        = \tfrac12\, \mathbb E\, w^\top d(M^\top M)\, w = \mathbb E\, (M w)^\top dM\, w.

    One differentiable product. The obvious :math:`\langle M A^{-1} v, M v \rangle` has the same
    expectation and a far larger spread.

    :param WhitenedJacobian jacobian: ``M``, made with gradients enabled.
    :param torch.Tensor inverse_root: ``w``, shape ``(P, ..., n)``.
    :returns: mean over probes, shape ``(...)``.
    """
    return 0.5 * jacobian.product(inverse_root.detach()).square().sum(-1).mean(0)


def _bidiagonalise(
    jacobian: WhitenedJacobian, probes: Tensor, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Golub-Kahan bidiagonalisation, the right vectors fully orthogonalised (twice).

    Where the Krylov space is exhausted the process is cut: the entry above the diagonal is 0, and
    the diagonal goes on with any positive number, which the first basis vector does not see.

    :returns: right vectors ``(k, P, ..., n)``, diagonal and entries above it ``(P, ..., k)``.
    """
    eps = torch.finfo(jacobian.dtype).eps
    right, _ = _normalise(probes, torch.zeros_like(probes[..., 0]))
    basis, diagonal, above = [right], [], []
    left = jacobian.product(right)
    largest = torch.zeros_like(probes[..., 0])
    for step in range(num_steps):
        left, alpha = _normalise(left, eps * largest)
        largest = torch.maximum(largest, alpha)
        right = jacobian.adjoint(left) - alpha[..., None] * right
        known = torch.stack(basis)
        for _ in range(2):
            right = right - torch.einsum(
                "k...n,k...->...n", known, torch.einsum("k...n,...n->k...", known, right)
            )
        right, beta = _normalise(right, 10 * eps * largest)
        largest = torch.maximum(largest, beta)
        alive = basis[-1].any(-1)
        diagonal.append(torch.where(alive, alpha, largest))
        above.append(beta)
        if step + 1 < num_steps:
            basis.append(right)
            left = jacobian.product(right) - beta[..., None] * left
    return torch.stack(basis), torch.stack(diagonal, -1), torch.stack(above, -1)


def _normalise(vector: Tensor, negligible: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors and norms; both zero where the norm is negligible."""
    norm = torch.linalg.vector_norm(vector, dim=-1)
    keep = ~(norm <= negligible)  # NaN is kept
    inverse = torch.where(keep, 1 / norm, 0.0)
    return vector * inverse[..., None], torch.where(keep, norm, 0.0)


def _eigen(diagonal: Tensor, above: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """
    Eigenvalues, at least ``floor``, and eigenvectors of ``floor I + B' B`` in float64, where ``B``
    is ``k x (k+1)`` with these diagonals: ``(..., k)``, and ``above`` with a leading dimension.
    """
    k = diagonal.shape[-1]
    size = (*above.shape, k + 1)
    bidiagonal = upcast(above).new_zeros(size)
    bidiagonal.diagonal(dim1=-2, dim2=-1).copy_(diagonal.expand_as(above))
    bidiagonal.diagonal(offset=1, dim1=-2, dim2=-1).copy_(above)
    gram = bidiagonal.mT @ bidiagonal
    gram[0, ..., k, k] = diagonal[..., 0] ** 2  # not seen by the others: any positive number does
    values, vectors = eigh_or_nan(gram)
    return floor + values.clamp(min=0.0), vectors
