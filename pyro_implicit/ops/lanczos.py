r"""
Log-determinants by stochastic Lanczos quadrature, from products alone and from both sides.

Shape legend: ``...`` the batch of draws, ``n`` the smaller side of the Jacobian, ``P`` probes,
``k`` steps.

For :math:`A = I + M^\top M` (:class:`~pyro_implicit.ops.scaled_jacobian.ScaledJacobian`) and random
``v`` with :math:`\mathbb E\, v v^\top = I`, :math:`\log\det A = \mathbb E\, v^\top \log(A)\, v`.
Golub and Kahan's bidiagonalisation of ``M``, which is the Lanczos process of :math:`M^\top M`
without its squared rounding errors, turns each quadratic form into a quadrature rule. The Gauss
rule is never below it; the Gauss-Radau rule with a node at 1, below which ``A`` has no eigenvalue
(:math:`\sigma^2` in the units of :math:`J J^\top + \sigma^2 I`), is never above it (Golub and
Meurant 2010).

References

- `Matrices, Moments and Quadrature with Applications`, G. H. Golub, G. Meurant, 2010. Chapters 3,
  4, 6 and 11.
- `Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature`, S. Ubaru, J. Chen, Y. Saad,
  SIAM Journal on Matrix Analysis and Applications, 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.ops.logdet import upcast
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian, eigh_or_nan

__all__ = [
    "PROBE_KINDS",
    "GradientPairs",
    "LanczosQuadrature",
    "draw_probes",
    "gradient_surrogate",
    "lanczos_quadrature",
]

#: see :func:`draw_probes`
PROBE_KINDS = ("orthogonal", "rademacher")
#: of all products with M, up to which they are kept (LeNet: 220 000 a draw)
_MAX_KEPT_ENTRIES = 2**22
#: the same for what these products met on the way, which is four times as much
_MAX_TRACED_ENTRIES = 2**18


@dataclass(frozen=True)
class GradientPairs:
    r"""
    Vectors that :func:`gradient_surrogate` pairs, ``T = 2`` per probe (1 without output noise).

    :param torch.Tensor left: shape ``(P, T, ..., max(d, m))``.
    :param torch.Tensor right: shape ``(P, T, ..., n)``.
    :param tuple kept: products of ``right`` with ``M``, shape ``(P T, ..., max(d, m))``, and what
        the products of ``right`` and of ``left`` met on the way, matrices of shapes ``(P T, ..., a,
        b)``; None if that was not kept.
    """

    left: Tensor
    right: Tensor
    kept: tuple[Tensor, list[Tensor], list[Tensor]] | None = None


@dataclass(frozen=True)
class _Bidiagonal:
    """
    What Golub and Kahan's process leaves.

    :param torch.Tensor basis: right vectors, shape ``(P, ..., k, n)``.
    :param torch.Tensor images: their products with ``M``, or None if they were not kept.
    :param torch.Tensor diagonal: shape ``(P, ..., k)``.
    :param torch.Tensor above: entries above it, shape ``(P, ..., k)``.
    :param met: what the products with right and of left vectors met on the way, by step; empty if
        that was not kept.
    """

    basis: Tensor
    images: Tensor | None
    diagonal: Tensor
    above: Tensor
    met: list[tuple[list[Tensor], list[Tensor]]]


@dataclass(frozen=True)
class LanczosQuadrature:
    r"""
    What one run of the process gives for each probe ``v``.

    :param torch.Tensor gauss: upper bound of :math:`v^\top \log(A)\, v`, shape ``(P, ...)``.
    :param torch.Tensor radau: lower bound of it, same shape; minus infinity without output noise.
    :param GradientPairs pairs: what the gradient is made of.
    """

    gauss: Tensor
    radau: Tensor
    pairs: GradientPairs


def draw_probes(kind: str, num_probes: int, jacobian: ScaledJacobian) -> Tensor:
    r"""
    Random vectors with :math:`\mathbb E\, v v^\top = I`, of their own for each draw.

    Both kinds have length :math:`\sqrt n`, so that a multiple of the identity has no spread.
    Gaussian vectors, whose length varies, had six times the spread and are not offered. With one
    probe the two kinds do equally well; ``n`` or more orthogonal ones have no spread at all.

    :param str kind: ``"orthogonal"``: uniform directions, every ``n`` of them orthogonal to each
        other; or ``"rademacher"``: independent random signs.
    :param int num_probes: ``P``.
    :param ScaledJacobian jacobian: gives shapes, dtype and device.
    :returns: shape ``(P, ..., n)``.
    :raises ArgumentError: for another kind.
    """
    if kind not in PROBE_KINDS:
        raise ArgumentError(f"probes={kind!r}; expected one of {', '.join(PROBE_KINDS)}.")
    shape = (num_probes, *jacobian.batch_shape, jacobian.size)
    noise = torch.randn(shape, dtype=jacobian.dtype, device=jacobian.device)
    if kind == "rademacher":
        return torch.where(noise < 0, -torch.ones_like(noise), 1.0)
    # probes with E vv' = I: theory/linearised.md (trace-log)
    blocks = [_orthonormal(block) for block in noise.split(jacobian.size)]
    probes: Tensor = jacobian.size**0.5 * torch.cat(blocks)
    return probes


def _orthonormal(gaussian: Tensor) -> Tensor:
    """Orthonormal vectors of uniform direction from ``p <= n`` Gaussian ones, ``(p, ..., n)``."""
    if len(gaussian) == 1:
        unit: Tensor = gaussian / torch.linalg.vector_norm(gaussian, dim=-1, keepdim=True)
        return unit
    q, r = torch.linalg.qr(gaussian.movedim(0, -1))
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    signs = torch.ones_like(diagonal).where(diagonal >= 0, -1.0)
    probes: Tensor = (q * signs[..., None, :]).movedim(-1, 0)
    return probes


def lanczos_quadrature(
    jacobian: ScaledJacobian, probes: Tensor, num_steps: int
) -> LanczosQuadrature:
    r"""
    Runs the Lanczos process with ``num_steps`` products with :math:`M^\top M`.

    It gives both quadrature rules and what the gradient needs.

    The bidiagonal ``B`` of ``k`` steps gives the Gauss rule as
    :math:`\|v\|^2 e_1^\top \log(I + B^\top B)\, e_1`. With its last off-diagonal entry, as a
    ``k x (k+1)`` matrix, the same formula is the Gauss-Radau rule: that matrix has a singular value
    0, hence a node at 1. The small problems are solved in float64. Exact for ``k = n``, and earlier
    where the Krylov space is exhausted (as many steps as there are different singular values).

    Cost: ``num_steps`` products with ``M`` and as many with its transpose, and
    :math:`O(k^2 n)` operations for orthogonalisation.

    :param ScaledJacobian jacobian: ``M``.
    :param torch.Tensor probes: shape ``(P, ..., n)``.
    :param int num_steps: ``k``; at most ``n`` are taken.
    :returns: no gradients are tracked; see :func:`gradient_surrogate`.
    """
    with torch.no_grad(), torch.autocast(jacobian.device.type, enabled=False):
        return _quadrature(jacobian, probes, min(num_steps, jacobian.size))


def _quadrature(jacobian: ScaledJacobian, probes: Tensor, num_steps: int) -> LanczosQuadrature:
    found = _bidiagonalise(jacobian, probes, num_steps)
    square = upcast(probes).square().sum(-1)
    # Gauss: B'B without its last beta; Gauss-Radau: with it, a node at the floor:
    # theory/linearised.md (gauss-rule, radau-rule)
    values, vectors = _eigen(found.diagonal, found.above, jacobian.floor)
    weights = vectors[..., 0, :]  # first entries of the eigenvectors
    gauss, radau = square * (weights.square() * values.log()).sum(-1)
    if jacobian.floor == 0:
        radau = torch.full_like(radau, -torch.inf)
    # |v| Y' e_1, for functions of A at the probe: theory/linearised.md (lanczos-functions)
    start = square.sqrt()[..., None] * weights[0]
    pairs = _pairs(jacobian, found, start, values[0], vectors[0])
    return LanczosQuadrature(gauss, radau, pairs)


def _pairs(
    jacobian: ScaledJacobian, found: _Bidiagonal, start: Tensor, values: Tensor, vectors: Tensor
) -> GradientPairs:
    """
    Applies functions of ``A`` to the probes by the Ritz pairs of the Gauss rule.

    What they are for is in :func:`gradient_surrogate`.

    Singular values that are zero but for rounding count as zero: what they would add to the
    gradient, ``rounding / sigma^2``, is noise.

    :param torch.Tensor start: the probes in terms of the ``vectors``, shape ``(P, ..., k + 1)``.
    """
    squares = values - jacobian.floor
    rounding = max((16 * torch.finfo(jacobian.dtype).eps) ** 2, 16 * torch.finfo(values.dtype).eps)
    is_null = squares <= rounding * squares.amax(-1, keepdim=True)
    basis, images = found.basis, found.images

    def coefficients(*functions: Tensor) -> Tensor:
        # of V f(B'B) e_1 in the basis: theory/linearised.md (lanczos-functions)
        weights = torch.stack(functions, -2) * start[..., None, :]
        return (weights @ vectors.mT)[..., : basis.shape[-2]].to(basis.dtype)

    def at_range(function: Tensor) -> Tensor:
        return torch.where(is_null, torch.zeros_like(function), function)

    # M A^(-1/2) v with A^(-1/2) Pi v, Pi = I - floor / A: theory/linearised.md (lanczos-gradient)
    left = [at_range(values.rsqrt())]
    right = [at_range(squares * values**-1.5)]
    if jacobian.floor:  # and M A^(-1) v with A^(-1) v
        left.append(at_range(1 / values))
        right.append(1 / values)
    of_left, of_right = coefficients(*left), coefficients(*right)
    rights = (of_right @ basis).movedim(-2, 1)
    if images is None:  # one after the other, in less memory
        lefts = (of_left @ basis).movedim(-2, 1)
        products = lefts.new_empty(*lefts.shape[:-1], jacobian.other_size)
        for i in range(lefts.shape[1]):
            products[:, i] = jacobian.product(lefts[:, i])
        return GradientPairs(products, rights)
    kept = _kept_pairs(found, of_left, of_right) if found.met else None
    # M V f(B'B) e_1: the same equation
    return GradientPairs((of_left @ images).movedim(-2, 1), rights, kept)


def _kept_pairs(
    found: _Bidiagonal, of_left: Tensor, of_right: Tensor
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """What products met on the way, of combinations ``(P, ..., T, k)`` of the right vectors."""
    tangents, cotangents = zip(*found.met, strict=True)
    # M v_j = alpha_j u_j + beta_(j-1) u_(j-1): theory/linearised.md (lanczos-recurrence)
    later = torch.cat([of_left[..., 1:], torch.zeros_like(of_left[..., :1])], -1)
    of_units = of_left * found.diagonal[..., None, :] + later * found.above[..., None, :]
    assert found.images is not None  # there are fewer of those that are kept with what they met
    product = (of_right @ found.images).movedim(-2, 1).flatten(0, 1)
    return product, _combined(of_right, tangents), _combined(of_units, cotangents)


def _combined(weights: Tensor, steps: Sequence[list[Tensor]]) -> list[Tensor]:
    """Sums over steps of matrices ``(P, ..., a, b)``, ``T`` for each: ``(P T, ..., a, b)``."""
    sums = []
    for matrices in zip(*steps, strict=True):
        flat = torch.stack([matrix.flatten(-2) for matrix in matrices], -2)
        found = (weights @ flat).movedim(-2, 1).flatten(0, 1)
        sums.append(found.unflatten(-1, matrices[0].shape[-2:]))
    return sums


def gradient_surrogate(jacobian: ScaledJacobian, pairs: GradientPairs) -> Tensor:
    r"""
    A number whose gradient estimates that of :math:`\tfrac12 \log\det A` without bias.

    Its value means nothing. :math:`\tfrac12\, d \log\det A = \operatorname{tr}(A^{-1} M^\top dM)`;
    with the soft projector :math:`\Pi = I - A^{-1}` onto the directions that ``M`` does not lose,

    .. math::  \operatorname{tr}(A^{-1} M^\top dM) =
        \mathbb E\, (M A^{-1/2} v)^\top dM\, (A^{-1/2} \Pi v)
        + \mathbb E\, (M A^{-1} v)^\top dM\, (A^{-1} v),

    all vectors held fixed: one differentiable product, of two vectors for each probe. Where every
    singular value is far above ``sigma`` the first term is all there is. The obvious
    :math:`\langle M A^{-1} v, M v \rangle` has the same expectation and a far larger spread; the
    first term without its projector is as good until the generator has directions that change
    nothing (a hidden layer narrower than the noise), and then its spread and, in float32, its
    error grow like :math:`1/\sigma` and :math:`1/\sigma^2`: for ``20 -> 10 -> 40`` at
    :math:`\sigma = 10^{-4}` and one probe a spread of 9000 times the gradient against 7, and with
    all probes an error of 11 times the gradient against :math:`10^{-5}`.

    :param ScaledJacobian jacobian: ``M``, made with gradients enabled.
    :param GradientPairs pairs: from :func:`lanczos_quadrature`.
    :returns: mean over probes, shape ``(...)``.
    """
    # left' dM right, both held fixed: theory/linearised.md (lanczos-gradient)
    left, right = pairs.left.detach(), pairs.right.detach()
    if pairs.kept is not None:
        return jacobian.pairing(left.flatten(0, 1), *pairs.kept) / len(left)
    if left.numel() > _MAX_KEPT_ENTRIES:  # one after the other, in less memory
        parts = [jacobian.paired(left[:, i], right[:, i]) for i in range(right.shape[1])]
        return torch.stack(parts).sum(0).mean(0)
    pairs_of_probe = jacobian.paired(left.flatten(0, 1), right.flatten(0, 1))
    surrogate: Tensor = pairs_of_probe.unflatten(0, right.shape[:2]).sum(1).mean(0)
    return surrogate


def _bidiagonalise(jacobian: ScaledJacobian, probes: Tensor, num_steps: int) -> _Bidiagonal:
    """
    Golub-Kahan bidiagonalisation, the right vectors fully orthogonalised (twice).

    Where the Krylov space is exhausted the process is cut: the entry above the diagonal is 0, and
    the diagonal goes on with any positive number, which the first basis vector does not see.

    Large products with ``M`` are not kept, ``k`` of which would be most of a step's memory: two
    more products make up for them.
    """
    eps = torch.finfo(jacobian.dtype).eps
    largest = torch.zeros_like(probes[..., 0])
    right, beta = _normalise(probes, largest)
    basis, diagonal, above = [right], [], []
    size = num_steps * probes.shape[:-1].numel() * jacobian.other_size
    product, adjoint = _products(
        jacobian, keeps=size <= min(_MAX_TRACED_ENTRIES, _MAX_KEPT_ENTRIES)
    )
    (left, tangents), met = product(right), []
    images = [left] if size <= _MAX_KEPT_ENTRIES else []
    for step in range(num_steps):
        alive = beta != 0  # the vector that ``left`` is the product with
        # alpha_j u_j: theory/linearised.md (lanczos-recurrence)
        left, alpha = _normalise(left, eps * largest)
        largest = torch.maximum(largest, alpha)
        back, cotangents = adjoint(left)
        met.append((tangents, cotangents))
        # beta_j v_(j+1), before it is made orthogonal to all before: the same equation
        right = torch.addcmul(back, alpha[..., None], right, value=-1)
        right, beta = _normalise(_orthogonal(right, basis), 10 * eps * largest)
        largest = torch.maximum(largest, beta)
        diagonal.append(torch.where(alive, alpha, largest))
        above.append(beta)
        if step + 1 < num_steps:
            basis.append(right)
            image, tangents = product(right)
            images = [*images, image] if size <= _MAX_KEPT_ENTRIES else []
            left = torch.addcmul(image, beta[..., None], left, value=-1)  # M v_(j+1) - beta_j u_j
            del image
    return _Bidiagonal(
        torch.stack(basis, -2),
        torch.stack(images, -2) if size <= _MAX_KEPT_ENTRIES else None,
        torch.stack(diagonal, -1),
        torch.stack(above, -1),
        met if met[0][0] else [],
    )


_Product = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


def _products(jacobian: ScaledJacobian, keeps: bool) -> tuple[_Product, _Product]:
    """Products with ``M`` and its transpose, and what they meet on the way if that is kept."""
    if keeps and jacobian.keeps:
        return jacobian.kept_product, jacobian.kept_adjoint
    return lambda x: (jacobian.product(x), []), lambda y: (jacobian.adjoint(y), [])


def _orthogonal(vector: Tensor, others: list[Tensor]) -> Tensor:
    """What is left of a vector ``(..., n)`` beside orthonormal ones (Gram and Schmidt, twice)."""
    known = torch.stack(others, -2)
    for _ in range(2):
        along = known @ vector[..., None]
        vector = vector - (along.mT @ known)[..., 0, :]
    return vector


def _normalise(vector: Tensor, negligible: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors and norms; both zero where the norm is negligible."""
    norm = torch.linalg.vector_norm(vector, dim=-1)
    keep = ~(norm <= negligible)  # NaN is kept
    inverse = torch.where(keep, 1 / norm, 0.0)
    return vector * inverse[..., None], torch.where(keep, norm, 0.0)


def _eigen(diagonal: Tensor, above: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """
    The eigenvalues and eigenvectors of ``floor I + B' B`` in float64, for bidiagonal ``B``.

    First those of Gauss, where ``B`` is ``k x k``, and one more that its first entries do not see;
    then those of Gauss and Radau, where it is ``k x (k+1)`` with these diagonals ``(..., k)``.
    Eigenvalues are at least ``floor``.
    """
    diagonal, above = upcast(diagonal), upcast(above)
    nothing = torch.zeros_like(above[..., -1:])
    # a row more: any positive number for Gauss, and none for Radau
    rows = [torch.cat([diagonal, last], -1) for last in (diagonal[..., :1], nothing)]
    columns = [torch.cat([above[..., :-1], last], -1) for last in (nothing, above[..., -1:])]
    bidiagonal = torch.diag_embed(torch.stack(rows)) + torch.diag_embed(torch.stack(columns), 1)
    # the tridiagonal matrix of Lanczos: theory/linearised.md (lanczos-factorisation)
    values, vectors = eigh_or_nan(bidiagonal.mT @ bidiagonal)
    return floor + values.clamp(min=0.0), vectors
