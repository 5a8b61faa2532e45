"""Whether a program takes the numbers of a tensor out of PyTorch, where a recording loses them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["ReadValues"]

#: what hands numbers to Python, NumPy or text without an operation of the dispatcher
_READING = frozenset(
    {
        Tensor.__array__,
        Tensor.__complex__,
        Tensor.__dlpack__,
        Tensor.__format__,
        Tensor.__repr__,
        Tensor.numpy,
        Tensor.tolist,
        torch.allclose,
        torch.equal,
        Tensor.allclose,
        Tensor.equal,
    }
)


class ReadValues(TorchFunctionMode):
    """
    Looks on while tensors are evaluated; ``found`` tells whether numbers were read.

    By whatever gives them to something else than tensors: lists, arrays and text; not by storages.
    Single numbers (``float(w)``) are what
    :data:`~pyro_implicit.ops.noticed_operation.NUMBER_READ` tells.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function."""
        self.found = self.found or func in _READING
        return func(*args, **(kwargs or {}))
