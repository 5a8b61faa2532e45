"""The images that a classifier is trained on, and those that it is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Images"]


@dataclass(frozen=True)
class Images:
    """
    Standardised images, to train on and to judge by.

    :param Tensor x: training images, shape ``(N, C, H, W)``.
    :param Tensor y: their labels, shape ``(N,)``.
    :param Tensor x_test: images of the same kind to judge by.
    :param Tensor y_test: their labels.
    :param shifted: the first of these turned or spoilt, by what was done to them: ``"60"`` for
        degrees, ``"blur 5"``.
    :param others: images of other classes, by name.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    shifted: dict[str, Tensor]
    others: dict[str, Tensor]
