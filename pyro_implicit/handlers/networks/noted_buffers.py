"""Buffers of the networks that are called, as they were before that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

__all__ = ["Noted", "Place", "is_kept", "noted_buffers"]

#: whose buffer it is, and what it is called there
Place = tuple[nn.Module, str]


class Noted(NamedTuple):
    """
    A buffer before a call.

    :param torch.Tensor buffer: itself, of any shape; a module may put another one in its place.
    :param torch.Tensor value: a copy, of the same shape.
    """

    buffer: Tensor
    value: Tensor


@contextmanager
def noted_buffers(seen: WeakSet[nn.Module] | None = None) -> Iterator[dict[Place, Noted]]:
    """
    Notes the buffers of each ``torch.nn.Module`` in training mode that this thread calls within.

    :param seen: modules that are known and left out; those that are noted come in.
    :returns: fills up with them and with those of their parts, in the order of the first calls.
    """
    found: dict[Place, Noted] = {}
    thread = threading.get_ident()
    known = WeakSet() if seen is None else seen

    def note(module: nn.Module, _: Any) -> None:
        if not module.training or threading.get_ident() != thread or module in known:
            return
        lazy = (one is not None and is_lazy(one) for one in module._buffers.values())
        if not any(lazy):  # else it is met again, with shapes
            known.add(module)
        for part in module.modules():
            for name, one in part._buffers.items():
                if one is None or (part, name) in found or not is_kept(one):
                    continue
                value = one.detach().clone()
                if is_kept(value):  # within a map of draws that writes, it is one of each draw
                    found[part, name] = Noted(one, value)

    hook = register_module_forward_pre_hook(note)
    try:
        yield found
    finally:
        hook.remove()


def is_kept(buffer: Tensor) -> bool:
    """
    Whether a buffer is the module's own, and no latent that a call has put in its place.

    :param torch.Tensor buffer: of any shape.
    :returns: whether it is the module's own.
    """
    if is_lazy(buffer):  # of no shape yet
        return False
    is_mapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(buffer)
    is_plain = buffer.layout is torch.strided  # a sparse matrix is no statistic
    is_free = not (buffer.requires_grad or buffer.is_inference() or buffer._is_view())
    return is_plain and is_free and not is_mapped
