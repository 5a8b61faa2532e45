"""Tells whether something fits into memory, before it is made."""

from __future__ import annotations

import math

import torch

from pyro_implicit.exceptions import OutOfMemoryError

__all__ = ["check_fits", "free_memory"]

_CPU = torch.device("cpu")


def free_memory(device: torch.device = _CPU) -> float:
    """
    The memory of a device that can still be had.

    :param torch.device device: a device.
    :returns: bytes of memory that can be had there without swapping, infinity where nobody tells.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):  # not Linux
        return math.inf


def check_fits(
    numel: int, dtype: torch.dtype, device: torch.device, what: str, instead: str
) -> None:
    """
    Refuses to make a tensor that does not fit into memory.

    :param int numel: number of entries of one tensor to be made.
    :param torch.dtype dtype: its type.
    :param torch.device device: where.
    :param str what: what the tensor holds, for the message.
    :param str instead: what to do instead, for the message.
    :raises OutOfMemoryError: if it alone is larger than all free memory of the device.
    """
    needed = numel * dtype.itemsize
    if needed < 2**20:  # not worth the question
        return
    free = free_memory(device)
    if needed > free:
        raise OutOfMemoryError(
            f"{what} would take {needed / 2**30:.3g} GiB in one tensor; {device.type} has "
            f"{free / 2**30:.3g} GiB free. {instead}"
        )
