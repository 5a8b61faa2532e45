"""Kernels between sets of points, and the width that suits them."""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from torch import Tensor

__all__ = [
    "gaussian_kernel",
    "inverse_multiquadric_kernel",
    "median_distance",
    "riesz_kernel",
    "squared_distances",
    "typical_distance",
]


#: Entries of both sets that one block holds: they and what is made of them stay in a core's cache.
_ENTRIES_OF_A_BLOCK = 2**18
_MIN_COLUMNS_OF_A_BLOCK = 1024  # and as many as points, whose distances are else more than these


def squared_distances(x: Tensor, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """
    Squared Euclidean distances between all pairs of points.

    Sums over blocks of columns, so that points of millions of columns are neither copied whole nor
    converted whole.

    :param torch.Tensor x: points, shape ``(n, m)``.
    :param torch.Tensor y: points, shape ``(k, m)``.
    :param dtype: that the distances are computed in; that of the points by default.
    :returns: squared Euclidean distances, shape ``(n, k)``, never negative.
    """
    points = len(x) + len(y)
    columns = max(_MIN_COLUMNS_OF_A_BLOCK, points, _ENTRIES_OF_A_BLOCK // max(1, points))
    blocks = zip(x.split(columns, -1), y.split(columns, -1), strict=True)
    return reduce(add, (_unclamped_squares(*block, dtype) for block in blocks)).clamp(min=0)


def _unclamped_squares(x: Tensor, y: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Squared distances that rounding can make negative."""
    x, y = x.to(dtype or x.dtype), y.to(dtype or y.dtype)
    centre = y.mean(0).detach()  # distances far from the origin would cancel
    x, y = x - centre, y - centre
    return x.square().sum(-1, keepdim=True) + y.square().sum(-1) - 2 * (x @ y.mT)


def gaussian_kernel(x: Tensor, y: Tensor, bandwidth: Tensor | float) -> Tensor:
    r"""
    The Gaussian kernel :math:`\exp(-\lVert x - y \rVert^2 / 2 h^2)` of all pairs of points.

    :param torch.Tensor x: points, shape ``(n, m)``.
    :param torch.Tensor y: points, shape ``(k, m)``.
    :param bandwidth: ``h > 0``, a number or shape ``()``, or ``(k,)`` for one per point of ``y``.
    :returns: shape ``(n, k)``.
    """
    return (squared_distances(x, y) / (-2 * bandwidth**2)).exp()


def median_distance(x: Tensor, y: Tensor) -> Tensor:
    """
    The median distance from the points ``x`` to those of ``y`` that are not the same point.

    :param torch.Tensor x: points, shape ``(n, m)``.
    :param torch.Tensor y: points, shape ``(k, m)``.
    :returns: shape ``()``, without a gradient; 1 if no two points differ.
    """
    size = torch.cat([x.detach().reshape(-1), y.detach().reshape(-1)]).abs().amax()
    return typical_distance(squared_distances(x.detach(), y.detach()), size)


def typical_distance(squares: Tensor, size: Tensor | float = 1.0) -> Tensor:
    """
    What :func:`median_distance` makes of squared distances that are there already.

    :param torch.Tensor squares: squared distances, shape ``(n, k)``.
    :param size: of the numbers that were subtracted, a number or shape ``()``.
    :returns: the median of their roots without those that are 0 but for rounding, shape ``()``; 1
        if there are no others.
    """
    eps = torch.finfo(squares.dtype).eps
    tiny = eps * squares.max() + (eps * size) ** 2  # of their sum, and of the differences
    apart = squares[squares > 10 * tiny]
    return apart.median().sqrt() if len(apart) else squares.new_ones(())


def inverse_multiquadric_kernel(x: Tensor, y: Tensor, bandwidth: Tensor | float) -> Tensor:
    r"""
    The inverse multiquadric kernel :math:`(1 + \lVert x - y \rVert^2 / h^2)^{-1/2}` of all pairs.

    Its tails fall as a power: points far apart still feel each other.

    :param torch.Tensor x: points, shape ``(n, m)``.
    :param torch.Tensor y: points, shape ``(k, m)``.
    :param bandwidth: ``h > 0``, a number or shape ``()``.
    :returns: shape ``(n, k)``.
    """
    return (1 + squared_distances(x, y) / bandwidth**2).rsqrt()


def riesz_kernel(x: Tensor, y: Tensor, centre: Tensor, bandwidth: Tensor | float) -> Tensor:
    r"""
    The Riesz kernel :math:`-\lVert x - y \rVert` of all pairs, made positive definite.

    It is :math:`1 + (\lVert x - c \rVert + \lVert y - c \rVert - \lVert x - y \rVert) / 2h`, which
    differs from it by functions of one point alone: between measures of equal mass both give the
    same discrepancy. A field of scores has no mass of 0, and so needs the positive definite form.

    :param torch.Tensor x: points, shape ``(n, m)``.
    :param torch.Tensor y: points, shape ``(k, m)``.
    :param torch.Tensor centre: ``c``, shape ``(m,)``.
    :param bandwidth: ``h > 0``, a number or shape ``()``.
    :returns: shape ``(n, k)``.
    """
    tiny = torch.finfo(x.dtype).eps  # the slope of a distance at 0 is none
    apart, left, right = (
        (squared_distances(a, b) + tiny**2).sqrt()
        for a, b in ((x, y), (x, centre[None]), (y, centre[None]))
    )
    return 1 + (left + right.mT - apart) / (2 * bandwidth)
