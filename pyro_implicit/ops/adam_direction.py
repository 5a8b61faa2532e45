"""
The direction of Adam's steps, for searches over tensors that no optimiser of torch is needed for.

References

- `Adam: A Method for Stochastic Optimization`, D. P. Kingma, J. Ba, ICLR 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["AdamDirection"]

_EPSILON = 1e-8  # the default of torch.optim.Adam


class AdamDirection:
    """
    Running means of gradients and their squares, of any shape.

    Decay rates are 0.9 and 0.99. With the usual 0.999 the large gradients at a badly chosen scale
    of the noise would hold all back for a thousand steps. For a few numbers this is several times
    as fast as an optimiser of torch.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.square = torch.zeros(())

    def __call__(self, gradient: Tensor) -> Tensor:
        """
        The next step, for a rate of 1.

        :param torch.Tensor gradient: of any shape, the same at each call.
        :returns: of that shape; along the gradient.
        """
        self.count += 1
        self.mean = 0.9 * self.mean.to(gradient) + 0.1 * gradient
        self.square = 0.99 * self.square.to(gradient) + 0.01 * gradient.square()
        root = (self.square / (1 - 0.99**self.count)).sqrt() + _EPSILON
        return self.mean / (1 - 0.9**self.count) / root
