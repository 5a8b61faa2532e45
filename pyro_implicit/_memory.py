"""Whether something fits into memory, asked before it is made."""

from __future__ import annotations

import os

import torch

from pyro_implicit.exceptions import OutOfMemoryError

__all__ = ["check_fits", "total_memory"]


def total_memory(device: torch.device) -> float:
    """
    :param torch.device device: a device.
    :returns: bytes of memory that it has in all; infinite if nobody can tell.
    """
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # not on every system
        return float("inf")


def check_fits(
    numel: int, dtype: torch.dtype, device: torch.device, what: str, instead: str
) -> None:
    """
    :param int numel: number of entries of one tensor to be made.
    :param torch.dtype dtype: its type.
    :param torch.device device: where.
    :param str what: what the tensor holds, for the message.
    :param str instead: what to do instead, for the message.
    :raises OutOfMemoryError: if it alone is larger than all memory of the device.
    """
    needed, there = numel * dtype.itemsize, total_memory(device)
    if needed > there:
        raise OutOfMemoryError(
            f"{what} would take {needed / 2**30:.1f} GiB in one tensor; {device.type} has "
            f"{there / 2**30:.1f} GiB in all. {instead}"
        )
