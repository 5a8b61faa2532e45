r"""
The smallest singular value of a Jacobian, from products alone.

Shape legend: ``...`` the batch of draws, ``n`` the smaller side of the Jacobian.

References

- `Toward the Optimal Preconditioned Eigensolver: Locally Optimal Block Preconditioned Conjugate
  Gradient Method`, A. V. Knyazev, SIAM Journal on Scientific Computing, 2001.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.ops.logdet import upcast
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian, eigh_or_nan

__all__ = ["SmallestPair", "smallest_eigenpair"]

#: a vector and its product with the Gram matrix
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class SmallestPair:
    r"""
    An approximate smallest eigenpair of :math:`M^\top M`.

    :param torch.Tensor value: :math:`\|M x\|^2`, shape ``(...)``: **never below** the smallest
        eigenvalue.
    :param torch.Tensor vector: the unit vector ``x``, shape ``(..., n)``.
    :param torch.Tensor residual: :math:`\|M^\top M x - \theta x\| / (\mathrm{floor} + \theta)`,
        shape ``(...)``: an eigenvalue of ``A`` lies within that fraction of ``floor + value``.
    :param int num_iterations: iterations done; ``n - 1`` if none was needed.
    """

    value: Tensor
    vector: Tensor
    residual: Tensor
    num_iterations: int


def smallest_eigenpair(
    jacobian: ScaledJacobian, start: Tensor, num_iterations: int, tolerance: float = 0.0
) -> SmallestPair:
    r"""
    Finds the smallest eigenpair of :math:`M^\top M` by conjugate gradients.

    This is LOBPCG with blocks of size 1 and no preconditioner (Knyazev 2001): each iteration
    minimises :math:`\|M x\|^2 / \|x\|^2` over the span of the iterate, its residual and the last
    direction.

    Cost: one product with ``M`` and one with its transpose to begin, and as many per iteration; the
    products of iterate and direction are combinations of those. No ``torch.lobpcg``: that takes
    no operators, and no batches of them. If ``n`` products are no more than that, ``M`` itself is
    made of them instead, and the pair is exact.

    :param ScaledJacobian jacobian: ``M``, at a batch of draws.
    :param torch.Tensor start: first iterates, shape ``(..., n)``, none zero.
    :param int num_iterations: at most so many; not negative.
    :param float tolerance: stops when every residual is at most that; 0 never looks, and so never
        waits for the device.
    :returns: no gradients are tracked.
    """
    with torch.no_grad(), torch.autocast(jacobian.device.type, enabled=False):
        if jacobian.size <= num_iterations + 1:
            return _decomposition(jacobian)
        return _search(jacobian, start, num_iterations, tolerance)


def _search(
    jacobian: ScaledJacobian, start: Tensor, num_iterations: int, tolerance: float
) -> SmallestPair:
    x = _unit(start.to(jacobian.dtype))
    gram_x = _gram(jacobian, x)
    p, gram_p = torch.zeros_like(x), torch.zeros_like(x)
    noise = 4 * torch.finfo(x.dtype).eps * torch.linalg.vector_norm(gram_x, dim=-1, keepdim=True)
    done = 0
    for _ in range(num_iterations):
        # quotient and residual: theory/linearised.md (rayleigh-quotient, lobpcg-step)
        theta = _dot(x, gram_x)
        r = gram_x - theta * x
        if tolerance > 0 and bool((_relative(r, theta, jacobian.floor) <= tolerance).all()):
            break
        # nothing but rounding errors is left: such a draw stays as it is
        r = torch.where(torch.linalg.vector_norm(r, dim=-1, keepdim=True) <= noise, 0.0, _unit(r))
        r = _unit(r - _dot(x, r) * x)
        gram_r = _gram(jacobian, r)
        noise = torch.maximum(noise, 4 * torch.finfo(x.dtype).eps * _dot(r, gram_r))
        p, gram_p = _orthogonal(p, gram_p, [(x, gram_x), (r, gram_r)])
        # the best point of span(x, r, p): theory/linearised.md (lobpcg-small-problem)
        basis = torch.stack([x, r, p], -1)
        gram_basis = torch.stack([gram_x, gram_r, gram_p], -1)
        weights = _smallest_combination(basis, gram_basis)
        # x' and p', and their products by linearity: theory/linearised.md (lobpcg-step)
        x, gram_x = _combine(basis, weights), _combine(gram_basis, weights)
        p, gram_p = (_combine(b[..., 1:], weights[..., 1:]) for b in (basis, gram_basis))
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        x, gram_x = x / norm, gram_x / norm
        done += 1
    theta = _dot(x, gram_x)
    residual = _relative(gram_x - theta * x, theta, jacobian.floor)
    return SmallestPair(theta[..., 0].clamp(min=0), x, residual, done)


def _decomposition(jacobian: ScaledJacobian) -> SmallestPair:
    """The pair from the matrix ``M``, by ``n`` products."""
    n, batch = jacobian.size, jacobian.batch_shape
    identity = torch.eye(n, dtype=jacobian.dtype, device=jacobian.device)
    columns = jacobian.product(identity.reshape(n, *[1] * len(batch), n).expand(n, *batch, n))
    matrix = upcast(columns.movedim(0, -1))
    gram = matrix.mT @ matrix
    values, vectors = eigh_or_nan(gram)
    theta, x = values[..., :1].clamp(min=0), vectors[..., 0]
    residual = _relative(_combine(gram, x) - theta * x, theta, jacobian.floor)
    found = (theta[..., 0].to(columns.dtype), x.to(columns.dtype), residual.to(columns.dtype))
    return SmallestPair(*found, n - 1)


def _gram(jacobian: ScaledJacobian, x: Tensor) -> Tensor:
    return jacobian.adjoint(jacobian.product(x[None]))[0]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def _unit(x: Tensor) -> Tensor:
    """Unit vectors; a zero vector stays zero."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(norm == 0, x, x / norm)


def _relative(residual: Tensor, theta: Tensor, floor: float) -> Tensor:
    # an eigenvalue is as near as this: theory/linearised.md (lobpcg-residual)
    size = (floor + theta[..., 0].abs()).clamp(min=torch.finfo(theta.dtype).tiny)
    share: Tensor = torch.linalg.vector_norm(residual, dim=-1) / size
    return share


def _orthogonal(p: Tensor, gram_p: Tensor, others: list[Pair]) -> Pair:
    """
    The unit vector along ``p`` that is orthogonal to the others, and its product.

    It is zero if nothing but rounding errors would be left of it.
    """
    p, gram_p = _scaled(p, gram_p, 0.0)
    for other, gram_other in others:
        along = _dot(other, p)
        p, gram_p = p - along * other, gram_p - along * gram_other
    return _scaled(p, gram_p, torch.finfo(p.dtype).eps ** 0.5)


def _scaled(p: Tensor, gram_p: Tensor, negligible: float) -> Pair:
    norm = torch.linalg.vector_norm(p, dim=-1, keepdim=True)
    inverse = torch.where(norm <= negligible, 0.0, 1 / norm)
    return p * inverse, gram_p * inverse


def _smallest_combination(basis: Tensor, gram_basis: Tensor) -> Tensor:
    """
    Weights ``(..., 3)`` of the combination of orthonormal columns with the smallest quotient.

    A column of zeros gets a quotient beyond all others, so that it is never taken.
    """
    # S' M'M S: theory/linearised.md (lobpcg-small-problem)
    small = upcast(basis).mT @ upcast(gram_basis)
    small = 0.5 * (small + small.mT)
    missing = ~basis.any(-2)
    beyond = 1 + 2 * small.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
    small = small + torch.diag_embed(torch.where(missing, beyond[..., None], 0.0))
    _, vectors = eigh_or_nan(small)
    return vectors[..., 0].to(basis.dtype)


def _combine(columns: Tensor, weights: Tensor) -> Tensor:
    return (columns @ weights[..., None])[..., 0]
