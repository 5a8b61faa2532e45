"""Scores of forecasts that are known by draws: CRPS, central intervals, means with their errors."""

# Shape legend: M draws of each of E data.
from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["central_interval", "crps_of_sorted", "mean_and_error"]


def crps_of_sorted(errors: Tensor) -> Tensor:
    r"""
    The continuous ranked probability score of draws, estimated without bias.

    :math:`E|X - y| - \tfrac12 E|X - X'|` with the mean over all pairs of different draws in place
    of the second expectation, the "fair" score of ensembles (C. Ferro 2014); in ``O(M)`` as the
    draws are sorted: each stands above and below so many others.

    Source: Fair scores for ensemble forecasts.

    :param torch.Tensor errors: draws less what was observed, in ascending order along the first
        dimension, shape ``(M, ...)`` with ``M >= 2``.
    :returns: shape ``(...)``, in the units of the draws; the lower the better, at best 0.
    """
    count = len(errors)
    places = torch.arange(count, dtype=errors.dtype, device=errors.device)
    weights = (2.0 * places - (count - 1)) / (count * (count - 1))
    spread = torch.tensordot(weights, errors, dims=1)
    score: Tensor = errors.abs().mean(0) - spread
    return score


def central_interval(ordered: Tensor, level: float, whole: bool = False) -> tuple[Tensor, Tensor]:
    """
    The bounds between which so large a share of the next draw lies.

    Order statistics at the places ``p (M + 1)``, between which another draw from the same
    distribution lies with exactly the asked probability in expectation, whatever the distribution
    (Weibull's plotting positions); interpolated between neighbours. There must be enough draws for
    the level: ``M >= 2 / (1 - level) - 1``.

    :param torch.Tensor ordered: draws in ascending order along the first dimension, ``(M, ...)``.
    :param float level: the share, between 0 and 1.
    :param bool whole: for counts: the next draws outwards instead of numbers between two draws.
    :returns: the lower and the upper bound, shape ``(...)`` each.
    """
    count = len(ordered)
    below = min(max((1.0 - level) / 2.0 * (count + 1) - 1.0, 0.0), (count - 1) / 2.0)
    outer = math.floor(below)
    low, high = ordered[outer], ordered[count - 1 - outer]
    part = 0.0 if whole else below - outer
    if part:
        low = low + part * (ordered[outer + 1] - low)
        high = high + part * (ordered[count - 2 - outer] - high)
    return low, high


def mean_and_error(values: Tensor, rows: Tensor) -> tuple[float, float]:
    r"""
    The mean of data and its standard error over rows.

    Data of the same row are not independent, so that rows are what is counted:
    :math:`\sqrt{\tfrac{n}{n - 1} \sum_r (s_r - c_r \bar{v})^2} / \sum_r c_r` with the sums
    :math:`s_r` and the numbers :math:`c_r` of the values of each of ``n`` rows. With one datum a
    row it is the usual standard error of a mean.

    :param torch.Tensor values: shape ``(N,)``.
    :param torch.Tensor rows: the row of each, any integers, shape ``(N,)``.
    :returns: the mean and its standard error, which is NaN for a single row.
    """
    values = values.double()
    mean = float(values.mean())
    names, place = rows.unique(return_inverse=True)
    num_rows = len(names)
    if num_rows < 2:
        return mean, math.nan
    deviations = values.new_zeros(num_rows).index_add_(0, place, values - mean)
    spread = float(deviations.square().sum()) * num_rows / (num_rows - 1)
    return mean, math.sqrt(spread) / len(values) if math.isfinite(spread) else math.nan
