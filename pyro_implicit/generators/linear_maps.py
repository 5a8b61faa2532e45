"""Square linear maps with cheap determinants, for between the blocks of a generator."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from pyro_implicit.ops.logdet import upcast

__all__ = [
    "INVERTIBLE_KINDS",
    "DiagonalMap",
    "FullMap",
    "LinearMap",
    "LowRankMap",
    "TriangularMap",
    "default_kind",
    "linear_map",
    "linear_maps",
]

INVERTIBLE_KINDS = ("diagonal", "triangular")
#: up to here a matrix with all its entries is the default
_MAX_SIZE_OF_DEFAULT_FULL = 256


class LinearMap(nn.Module, ABC):
    """
    A square matrix ``A`` of size ``m``, which starts as a multiple of the identity.

    Products are computed in the dtype of what is multiplied; the determinant in float64.
    """

    #: whether no value of the parameters makes the matrix singular
    is_invertible = False

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """
        Multiply.

        :param torch.Tensor x: shape ``(..., m)``.
        :returns: ``A x``, of the same shape.
        """

    @abstractmethod
    def transposed(self, x: Tensor) -> Tensor:
        """
        Multiply by the transposed matrix.

        :param torch.Tensor x: shape ``(..., m)``.
        :returns: ``A' x``, of the same shape.
        """

    @abstractmethod
    def inverse(self, x: Tensor) -> Tensor:
        """
        Solve a linear system.

        :param torch.Tensor x: shape ``(..., m)``.
        :returns: the solution ``y`` of ``A y = x``, of the same shape.
        """

    @abstractmethod
    def log_abs_det(self) -> Tensor:
        """Return ``log |det A|`` in float64, shape ``()``."""

    def columns(self, matrix: Tensor) -> Tensor:
        """
        Multiply each column of a matrix.

        :param torch.Tensor matrix: shape ``(..., m, k)``.
        :returns: ``A`` times each of its columns, of the same shape.
        """
        product: Tensor = self(matrix.mT).mT
        return product


class DiagonalMap(LinearMap):
    r"""
    A diagonal matrix with positive entries.

    :param int size: ``m``.
    :param float scale: its entries at the start.
    """

    is_invertible = True

    def __init__(self, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.log_diagonal = nn.Parameter(torch.full((size,), math.log(scale)))

    def diagonal(self, like: Tensor) -> Tensor:
        """Return the entries in the dtype of ``like``, shape ``(m,)``."""
        return self.log_diagonal.to(like.dtype).exp()

    def forward(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.forward`."""
        return self.diagonal(x) * x

    def transposed(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.transposed`."""
        mapped: Tensor = self(x)
        return mapped

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.inverse`."""
        return x / self.diagonal(x)

    def log_abs_det(self) -> Tensor:
        """See :meth:`LinearMap.log_abs_det`."""
        return upcast(self.log_diagonal).sum()


class LowRankMap(LinearMap):
    r"""
    A positive diagonal and a correction of low rank, :math:`\mathrm{diag}(s) + U V^\top`.

    :param int size: ``m``.
    :param float scale: the diagonal's entries at the start.
    :param int rank: columns of ``U`` and ``V``.
    """

    def __init__(self, size: int, scale: float = 1.0, rank: int = 8) -> None:
        super().__init__()
        rank = min(rank, size)
        self.log_diagonal = nn.Parameter(torch.full((size,), math.log(scale)))
        self.left = nn.Parameter(torch.zeros(size, rank))
        self.right = nn.Parameter(torch.randn(size, rank) / math.sqrt(size))

    def _parts(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.log_diagonal.to(like.dtype).exp(),
            self.left.to(like.dtype),
            self.right.to(like.dtype),
        )

    def forward(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.forward`."""
        diagonal, left, right = self._parts(x)
        return diagonal * x + (x @ right) @ left.mT

    def transposed(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.transposed`."""
        diagonal, left, right = self._parts(x)
        return diagonal * x + (x @ left) @ right.mT

    def _capacitance(self, like: Tensor) -> Tensor:
        """The small matrix ``I + V' diag(1/s) U`` of the determinant lemma."""
        diagonal, left, right = self._parts(like)
        eye = torch.eye(left.shape[-1], dtype=like.dtype, device=like.device)
        return eye + right.mT @ (left / diagonal[:, None])

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.inverse`; by the Woodbury identity."""
        diagonal, left, right = self._parts(x)
        scaled = x / diagonal
        inner = torch.linalg.solve(self._capacitance(x), (scaled @ right)[..., None])[..., 0]
        solved: Tensor = scaled - (inner @ left.mT) / diagonal
        return solved

    def log_abs_det(self) -> Tensor:
        """See :meth:`LinearMap.log_abs_det`."""
        wide = upcast(self.log_diagonal)
        logdet: Tensor = wide.sum() + torch.linalg.slogdet(self._capacitance(wide)).logabsdet
        return logdet


class FullMap(LinearMap):
    """
    Any square matrix.

    :param int size: ``m``.
    :param float scale: the multiple of the identity at the start.
    """

    def __init__(self, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(scale * torch.eye(size))

    def forward(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.forward`."""
        return x @ self.weight.to(x.dtype).mT

    def transposed(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.transposed`."""
        return x @ self.weight.to(x.dtype)

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.inverse`."""
        solved: Tensor = torch.linalg.solve(self.weight.to(x.dtype), x[..., None])[..., 0]
        return solved

    def log_abs_det(self) -> Tensor:
        """See :meth:`LinearMap.log_abs_det`."""
        logdet: Tensor = torch.linalg.slogdet(upcast(self.weight)).logabsdet
        return logdet


class TriangularMap(LinearMap):
    """
    A matrix by its triangular factors, which is never singular.

    It is ``L U`` with ones on the diagonal of ``L`` and positive numbers on that of ``U``; its
    determinant costs nothing.

    :param int size: ``m``.
    :param float scale: the multiple of the identity at the start.
    """

    is_invertible = True

    def __init__(self, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.lower = nn.Parameter(torch.zeros(size, size))
        self.upper = nn.Parameter(torch.zeros(size, size))
        self.log_diagonal = nn.Parameter(torch.full((size,), math.log(scale)))

    def _factors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self.lower.to(like.dtype), self.upper.to(like.dtype)
        eye = torch.eye(len(lower), dtype=like.dtype, device=like.device)
        diagonal = self.log_diagonal.to(like.dtype).exp()
        return lower.tril(-1) + eye, upper.triu(1) + torch.diag(diagonal)

    def forward(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.forward`."""
        lower, upper = self._factors(x)
        return (x @ upper.mT) @ lower.mT

    def transposed(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.transposed`."""
        lower, upper = self._factors(x)
        return (x @ lower) @ upper

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`LinearMap.inverse`; two triangular systems."""
        lower, upper = self._factors(x)
        flat = x.reshape(-1, x.shape[-1]).mT
        middle = torch.linalg.solve_triangular(lower, flat, upper=False, unitriangular=True)
        solved: Tensor = torch.linalg.solve_triangular(upper, middle, upper=True)
        return solved.mT.reshape(x.shape)

    def log_abs_det(self) -> Tensor:
        """See :meth:`LinearMap.log_abs_det`."""
        return upcast(self.log_diagonal).sum()


_CLASSES_BY_KIND: dict[str, type[LinearMap]] = {
    "diagonal": DiagonalMap,
    "low-rank": LowRankMap,
    "full": FullMap,
    "triangular": TriangularMap,
}


def linear_map(kind: str, size: int, scale: float = 1.0) -> LinearMap:
    """
    Make a linear map of one kind.

    :param str kind: ``"diagonal"``, ``"low-rank"``, ``"full"`` or ``"triangular"``.
    :param int size: ``m``.
    :param float scale: the multiple of the identity that it starts as.
    """
    return _CLASSES_BY_KIND[kind](size, scale)


def linear_maps(kind: str, size: int, count: int, scale: float = 1.0) -> nn.ModuleList:
    """
    Make the maps that follow the blocks of a generator.

    :param str kind: see :func:`linear_map`.
    :param int size: ``m``.
    :param int count: how many.
    :param float scale: the multiple of the identity that the last starts as; the others start as
        the identity.
    """
    scales = [1.0] * (count - 1) + [scale]
    return nn.ModuleList(linear_map(kind, size, scale) for scale in scales)


def default_kind(size: int, *, invertible: bool) -> str:
    """
    Choose the kind of maps by their size.

    :param int size: ``m``.
    :param bool invertible: whether no map may be singular, whatever its parameters.
    :returns: a matrix with all its entries up to 256, one with few above.
    """
    if size <= _MAX_SIZE_OF_DEFAULT_FULL:
        return "triangular" if invertible else "full"
    return "diagonal" if invertible else "low-rank"
