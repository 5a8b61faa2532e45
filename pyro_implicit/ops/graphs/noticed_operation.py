"""Whether something runs an operation."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CONVOLUTION", "NUMBER_READ", "NoticedOperation"]

#: The dispatcher's convolution, of any number of dimensions.
CONVOLUTION = torch.ops.aten.convolution.default
#: What reads a number out of a tensor (``.item()``, ``float(tensor)``, ``if tensor``).
NUMBER_READ = torch.ops.aten._local_scalar_dense.default


class NoticedOperation(TorchDispatchMode):
    """
    Looks on while tensors are evaluated; ``found`` tells whether the operation was among theirs.

    :param operation: an operation of the dispatcher.
    """

    def __init__(self, operation: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operation, self.found = operation, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler to keep it away, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func is self._operation
        return func(*args, **(kwargs or {}))
