"""Networks in training mode that are looked at, and whose running statistics do not move by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["is_kept", "still_statistics"]


@contextmanager
def still_statistics() -> Iterator[None]:
    """
    Puts back, in the end, the buffers of each ``torch.nn.Module`` that this thread calls within.

    Unlike :func:`~pyro_implicit.handlers.evaluation_mode.evaluation_mode` it leaves modes as they
    are: what is looked at is what training does.
    """
    before: dict[Tensor, Tensor] = {}
    thread = threading.get_ident()

    def note(module: nn.Module, _: Any) -> None:
        if module.training and threading.get_ident() == thread:
            new = [one for one in module.buffers() if is_kept(one) and one not in before]
            before.update((one, one.detach().clone()) for one in new)

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            for buffer, value in before.items():
                if not torch.equal(buffer, value):  # batch_norm does not count its writing
                    buffer.data.copy_(value)  # nor is this: a graph may have saved it


def is_kept(buffer: Tensor) -> bool:
    """
    Whether a buffer is the module's own, and no latent that a call has put in its place.

    :param torch.Tensor buffer: of any shape.
    :returns: whether it is the module's own.
    """
    is_mapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(buffer)
    is_plain = buffer.layout is torch.strided  # a sparse matrix is no statistic
    is_free = not (buffer.requires_grad or buffer.is_inference() or buffer._is_view())
    return is_plain and is_free and not is_mapped
