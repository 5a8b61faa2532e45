"""Rows of each batch, where the same rows are together in each epoch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, SequentialSampler

from pyro_implicit.training.resumable_loader import ResumableLoader

__all__ = ["num_rows_of_loader", "sizes_of_loader"]


def num_rows_of_loader(loader: Any) -> int:
    """
    Counts the rows of an epoch.

    :param loader: what batches come from.
    :returns: their number; 0 where nobody knows without a pass.
    """
    if type(loader) not in (DataLoader, ResumableLoader) or loader.batch_size is None:
        return 0
    try:
        return len(loader.sampler)
    except TypeError:  # a stream
        return 0


def sizes_of_loader(loader: Any) -> list[int]:
    """
    Rows of each batch of a loader that goes through its data in their order.

    :param loader: what batches come from.
    :returns: the numbers; empty where rows are shuffled, or nobody knows.
    """
    num_rows = num_rows_of_loader(loader)
    if not num_rows or type(loader.sampler) is not SequentialSampler:
        return []
    size = loader.batch_size
    rest = 0 if loader.drop_last else num_rows % size
    return [size] * (num_rows // size) + [rest] * bool(rest)
