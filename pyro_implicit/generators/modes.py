"""The modes (training or evaluation) of a module's parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluated"]


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Within it all parts of the module are in evaluation mode: nothing random, nothing counted."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
