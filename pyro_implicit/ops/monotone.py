r"""
Increasing functions of one variable whose slope is never below one: the identity plus steps.

.. math::  f(z) = z + \sum_k a_k \tanh(u_k (z - b_k)), \qquad a_k \ge 0, \quad u_k > 0.

Shape legend: ``...`` entries that each have a function of their own, ``K`` steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Steps"]


@dataclass(frozen=True)
class Steps:
    """
    Functions of that kind, one for each entry.

    :param torch.Tensor height: ``a``, shape ``(K, ...)``, not negative.
    :param torch.Tensor centre: ``b``, shape ``(K, ...)``.
    :param torch.Tensor rate: ``u``, shape ``(K, ...)``, positive.
    """

    height: Tensor
    centre: Tensor
    rate: Tensor

    def value(self, z: Tensor) -> Tensor:
        """
        Evaluate the functions.

        :param torch.Tensor z: shape ``(...)``.
        :returns: ``f(z)``, of the same shape.
        """
        return z + (self.height * torch.tanh(self.rate * (z - self.centre))).sum(0)

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """
        Evaluate the functions and their slopes.

        :param torch.Tensor z: shape ``(...)``.
        :returns: ``f(z)`` and its slope, of the same shape.
        """
        step = torch.tanh(self.rate * (z - self.centre))
        value = z + (self.height * step).sum(0)
        return value, 1 + (self.height * self.rate * (1 - step.square())).sum(0)

    @torch.no_grad()
    def inverse(self, y: Tensor, num_steps: int = 200) -> Tensor:
        """
        Find the arguments of given values.

        Newton's method works inside of a bracket, which is halved where its step leaves it, or
        where neither the bracket nor what is missing became half as much: at a steep step it would
        go to and fro for ever.

        :param torch.Tensor y: shape ``(...)``.
        :param int num_steps: when to stop at the latest; the bracket then has the width of one
            rounding.
        :returns: the one ``z`` with ``f(z) = y``, of the same shape.
        """
        reach = self.height.sum(0)  # theory/guides.md (steps-bracket)
        low, high = y - reach, y + reach
        z = y
        width = high - low
        rounding = 8 * torch.finfo(y.dtype).eps * (1 + y.abs() + reach)
        before = torch.full_like(y, torch.inf)
        for _ in range(num_steps):
            value, slope = self.value_and_slope(z)
            rest = value - y
            stuck = (rest.abs() > 0.5 * before) & (rest.abs() > rounding)
            before = rest.abs()
            low = torch.where(rest <= 0, z, low)
            high = torch.where(rest >= 0, z, high)
            then = z - rest / slope
            slow = (high - low) > 0.5 * width
            outside = (then < low) | (then > high)
            width = high - low
            then = torch.where(outside | (slow & stuck), 0.5 * (low + high), then)
            if torch.equal(then, z):
                break
            small = (then - z).abs() <= 4 * torch.finfo(y.dtype).eps * z.abs().clamp(min=1)
            small = small | (rest.abs() <= rounding)
            z = then
            if bool(small.all()):
                break
        return z
