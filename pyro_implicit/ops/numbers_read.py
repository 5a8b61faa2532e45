"""Whether something reads a number back from a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["NumbersRead"]


class NumbersRead(TorchDispatchMode):
    """Looks on while a function is traced; ``found`` tells whether it read a number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
