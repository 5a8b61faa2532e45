"""Whether two tensors are the same to the bit, but for the sign of zero."""

from __future__ import annotations

from torch import Tensor

__all__ = ["same_bits"]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """
    Compares type, shape and numbers; NaN is the same as NaN.

    :param torch.Tensor one: any shape.
    :param torch.Tensor other: any shape.
    :returns: whether they are the same.
    """
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
