"""Tests whether ranks are uniform, by closed forms: nothing but PyTorch is needed."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["asymmetry_p_values", "num_bins", "uniformity_p_values"]


def num_bins(num_ranks: int, num_simulations: int) -> int:
    """
    The number of bins for a histogram of ranks.

    :param int num_ranks: possible ranks ``R``.
    :param int num_simulations: ``n``.
    :returns: the largest divisor of ``R`` that leaves 5 expected ranks or more in each bin, at most
        20; at least 2 if ``R`` has such a divisor.
    """
    most = max(2, min(20, num_simulations // 5))
    return max((b for b in range(1, most + 1) if num_ranks % b == 0), default=1)


def uniformity_p_values(ranks: Tensor, num_ranks: int, bins: int) -> Tensor:
    """
    Pearson's chi-square test of equal counts.

    :param torch.Tensor ranks: ``0 ... num_ranks - 1``, shape ``(n, ...)``.
    :param int num_ranks: ``R``.
    :param int bins: a divisor of ``R``, at least 2.
    :returns: shape ``(...)``.
    """
    n = len(ranks)
    places = ranks * bins // num_ranks
    counts = torch.stack([(places == b).sum(0) for b in range(bins)]).double()
    statistic = ((counts - n / bins).square() / (n / bins)).sum(0)
    half = torch.tensor(0.5 * (bins - 1), dtype=torch.float64)
    p_value: Tensor = torch.special.gammaincc(half.expand_as(statistic), 0.5 * statistic)
    return p_value


def asymmetry_p_values(ranks: Tensor, num_ranks: int) -> Tensor:
    """
    A z-test of the mean rank: biased guides move it, wrong spreads do not.

    :param torch.Tensor ranks: ``0 ... num_ranks - 1``, shape ``(n, ...)``.
    :param int num_ranks: ``R``.
    :returns: two-sided, shape ``(...)``.
    """
    n = len(ranks)
    variance = (num_ranks**2 - 1) / 12.0
    z = (ranks.double().mean(0) - (num_ranks - 1) / 2) / (variance / n) ** 0.5
    p_value: Tensor = torch.special.erfc(z.abs() / 2**0.5)
    return p_value
