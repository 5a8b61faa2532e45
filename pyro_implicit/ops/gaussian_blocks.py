"""A Gaussian over consecutive blocks of a vector, as one conditional after the other."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Blocks", "FullBlocks", "LowRankBlocks"]


class Blocks(Protocol):
    """What gives each block its distribution, once all blocks before it are known."""

    def conditional(self, rows: slice) -> tuple[Tensor | None, Tensor]:
        """The shift of the block's mean (None: none yet), and a factor of its covariance."""
        ...

    def observe(self, rows: slice, deviation: Tensor) -> None:
        """Takes note of the block's deviation from its marginal mean."""
        ...


class FullBlocks:
    r"""
    Blocks of :math:`\mathcal N(0, L L^\top)` in their order.

    With ``L`` lower triangular, block ``i`` given those before is
    :math:`\mathcal N(L_{i,<i} z_{<i}, L_{ii} L_{ii}^\top)` at :math:`z_{<i} = L_{<i}^{-1} u_{<i}`.

    :param torch.Tensor root: ``L``, shape ``(m, m)``.
    """

    def __init__(self, root: Tensor) -> None:
        self.root = root
        self._noise: Tensor | None = None  # of the blocks so far, shape (*batch, k)

    def conditional(self, rows: slice) -> tuple[Tensor | None, Tensor]:
        """
        The distribution of a block.

        :param slice rows: the block, that after the last one observed.
        :returns: shift of the mean, shape ``(*batch, n)`` or None, and triangular root, ``(n, n)``.
        """
        shift = None if self._noise is None else self._noise @ self.root[rows, : rows.start].mT
        return shift, self.root[rows, rows]

    def observe(self, rows: slice, deviation: Tensor) -> None:
        """
        Takes note of a block's value.

        :param slice rows: the block.
        :param torch.Tensor deviation: from its marginal mean, shape ``(*batch, n)``.
        """
        shift, root = self.conditional(rows)
        rest = deviation if shift is None else deviation - shift
        noise = torch.linalg.solve_triangular(root, rest.unsqueeze(-1), upper=False).squeeze(-1)
        self._noise = noise if self._noise is None else torch.cat([self._noise, noise], -1)


class LowRankBlocks:
    r"""
    Blocks of :math:`\mathcal N(0, W W^\top + D)` in any order.

    :math:`u_i = W_i f + \sqrt{D_i}\,\varepsilon` with ``f`` standard normal: given some blocks
    ``f`` has precision :math:`P = I + \sum_j W_j^\top D_j^{-1} W_j`, and the next block has mean
    :math:`W_i P^{-1} \sum_j W_j^\top D_j^{-1} u_j` and covariance
    :math:`W_i P^{-1} W_i^\top + D_i`.

    :param torch.Tensor factor: ``W``, shape ``(m, r)``.
    :param torch.Tensor scale: the square root of ``D``, shape ``(m,)``.
    """

    def __init__(self, factor: Tensor, scale: Tensor) -> None:
        self.factor, self.scale = factor, scale
        self._precision = torch.eye(factor.shape[-1]).to(factor)
        self._sum: Tensor | None = None  # shape (*batch, r)

    def conditional(self, rows: slice) -> tuple[Tensor | None, Tensor]:
        """
        The distribution of a block.

        :param slice rows: the block.
        :returns: shift of the mean, shape ``(*batch, n)`` or None, and the factor of its covariance
            beside ``D``, shape ``(n, r)``.
        """
        root = torch.linalg.cholesky(self._precision)
        factor = torch.linalg.solve_triangular(root, self.factor[rows].mT, upper=False).mT
        if self._sum is None:
            return None, factor
        inner = torch.linalg.solve_triangular(root, self._sum.unsqueeze(-1), upper=False)
        return inner.squeeze(-1) @ factor.mT, factor

    def observe(self, rows: slice, deviation: Tensor) -> None:
        """
        Takes note of a block's value.

        :param slice rows: the block.
        :param torch.Tensor deviation: from its marginal mean, shape ``(*batch, n)``.
        """
        weighted = self.factor[rows] / self.scale[rows].square().unsqueeze(-1)
        self._precision = self._precision + self.factor[rows].mT @ weighted
        notes = deviation @ weighted
        self._sum = notes if self._sum is None else self._sum + notes
