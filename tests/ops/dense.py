"""A Jacobian given as a matrix, and what is exact about it: for methods that use products."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.ops.linearisation import Linearisation


class MatrixLinearisation(Linearisation):
    """
    Products with a matrix, counted.

    :param torch.Tensor jacobian: shape ``(..., m, d)``.
    """

    def __init__(self, jacobian: Tensor) -> None:
        super().__init__(jacobian[..., 0], jacobian.shape[-1])
        self.matrix = jacobian
        self.num_jvp = self.num_vjp = 0

    def jvp(self, v: Tensor) -> Tensor:
        self.num_jvp += 1
        return (self.matrix @ v[..., None])[..., 0]

    def vjp(self, u: Tensor) -> Tensor:
        self.num_vjp += 1
        return (self.matrix.mT @ u[..., None])[..., 0]


def whitened(jacobian: Tensor, scale: float | Tensor) -> Tensor:
    """The matrix ``M`` in float64: the smaller side in columns; as it is for the number 0."""
    jacobian = jacobian.double()
    m, d = jacobian.shape[-2:]
    if isinstance(scale, Tensor) or scale != 0:
        sigma = torch.as_tensor(scale, dtype=torch.float64).expand(m)
        jacobian = jacobian / sigma[:, None]
    return jacobian if d <= m else jacobian.mT


def function_of_gram(matrix: Tensor, function, floor: float = 1.0) -> Tensor:
    """``function(floor I + M'M)`` by its eigenvalues, shape ``(..., n, n)``."""
    _, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return (right.mT * function(floor + values.square())[..., None, :]) @ right


def with_singular_values(values: Tensor, m: int, d: int, batch: tuple[int, ...] = ()) -> Tensor:
    """Random matrices ``(*batch, m, d)`` with these singular values, in float64."""
    n = min(m, d)
    left, _ = torch.linalg.qr(torch.randn(*batch, m, n, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(*batch, d, n, dtype=torch.float64))
    return (left * values.double()) @ right.mT
