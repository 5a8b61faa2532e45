"""The default critic of the adversarial objective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Critic"]


class Critic(nn.Module):
    """
    A network that tells draws of two distributions apart: a perceptron beside a quadratic form.

    The quadratic part makes it exact for Gaussians with independent entries, whose log-ratio is
    quadratic; a perceptron alone learns tails slowly. It starts at 0: "cannot tell".

    :param int dim: number ``m`` of entries of a draw.
    :param hidden_dims: widths of the hidden layers.
    """

    def __init__(self, dim: int, hidden_dims: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        widths = [dim, *hidden_dims]
        layers: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(before, after), nn.SiLU()]
        last = nn.Linear(widths[-1], 1)
        self.network = nn.Sequential(*layers, last)
        self.quadratic = nn.Linear(2 * dim, 1, bias=False)
        for parameter in (last.weight, last.bias, self.quadratic.weight):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """
        Tells draws of the guide from others.

        :param torch.Tensor x: draws, shape ``(n, m)``.
        :returns: log-odds that each is from the guide, shape ``(n,)``.
        """
        squares = (x.square() - 1) / 2**0.5
        logits: Tensor = (self.network(x) + self.quadratic(torch.cat([x, squares], -1))).squeeze(-1)
        return logits
