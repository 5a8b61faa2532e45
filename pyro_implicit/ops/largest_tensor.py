"""How large the tensors are that a computation makes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

__all__ = ["LargestTensor"]

_TYPES_WITHOUT_TENSORS = frozenset(
    (bool, int, float, str, type(None), torch.Size, torch.dtype, torch.device)
)


class LargestTensor(TorchFunctionMode):
    """
    Counts the entries that functions of torch return: of the largest tensor, and of all.

    What goes on within such a function is not counted. (A mode that sees it, ``TorchDispatchMode``,
    takes three seconds and 150 MB when a process first uses one.)

    What a function makes of data tells more than its arguments do: they may be in a dictionary, in
    a closure, or a few numbers that are broadcast over many.

    Example::

        from pyro_implicit.ops.largest_tensor import LargestTensor

        with LargestTensor() as largest:
            torch.ones(3, 4).exp().sum()
        largest.numel, largest.total  # 12, and 25
    """

    def __init__(self) -> None:
        super().__init__()
        self.numel = self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if type(found) in _TYPES_WITHOUT_TENSORS:  # most calls of a run ask for a shape or a type
            return found
        for leaf in (found,) if isinstance(found, Tensor) else _pytree.tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.numel())
                self.total += leaf.numel()
        return found
