"""What a model with latents of each row brings: data, its example's own guide, and an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import torch
from torch import Tensor, nn

__all__ = ["Problem", "rows_of"]


@dataclass(frozen=True)
class Problem:
    """
    One model and its data; ``model``, ``own`` and ``context`` take data and numbers of the rows.

    :param model: of minibatches, its plate of the size of ``train``.
    :param own: the guide that Pyro's example of this model has.
    :param nn.Module context: the encoder of that guide, as numbers for each row.
    :param Tensor train: rows to fit.
    :param Tensor held: rows to judge by.
    :param float lr: the example's.
    :param evidence: exact log evidence of given rows, where it is known.
    """

    model: Callable[..., Any]
    own: Callable[..., Any]
    context: nn.Module
    train: Tensor
    held: Tensor
    lr: float
    evidence: Callable[[Tensor], Tensor] | None = None

    @property
    def plates(self) -> Callable[..., pyro.plate]:
        """For guides of Pyro that have a value for each row."""
        return partial(rows_of, len(self.train))


def rows_of(num: int, x: Tensor, rows: Tensor | None = None) -> pyro.plate:
    """
    The plate of a minibatch.

    :param int num: all rows.
    :param Tensor x: those of the minibatch.
    :param rows: their numbers; none where the guide has no value for each.
    """
    if rows is None:
        rows = torch.arange(len(x))
    return pyro.plate("data", num, subsample=rows, dim=-1)
