"""Whether something convolves."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Convolutions"]


class Convolutions(TorchDispatchMode):
    """Looks on while tensors are evaluated; ``found`` tells whether there was a convolution."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))
