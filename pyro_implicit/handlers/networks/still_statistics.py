"""Networks in training mode that are looked at, and whose running statistics do not move by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pyro_implicit.handlers.networks.noted_buffers import noted_buffers

__all__ = ["still_statistics"]


@contextmanager
def still_statistics() -> Iterator[None]:
    """
    Puts back, in the end, the buffers of each ``torch.nn.Module`` that this thread calls within.

    Unlike ``evaluation_mode`` it leaves modes as they are: what is looked at is what training does.
    """
    with noted_buffers() as before:
        try:
            yield
        finally:
            with torch.no_grad():
                for (module, name), (buffer, value) in before.items():
                    module._buffers[name] = buffer
                    if not torch.equal(buffer, value):  # batch_norm does not count its writing
                        buffer.data.copy_(value)  # nor is this: a graph may have saved it
