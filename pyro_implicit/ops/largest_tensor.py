"""How large the tensors are that a computation makes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["LargestTensor"]


class LargestTensor(TorchDispatchMode):
    """
    Counts the entries that operations inside of it return: of the largest tensor, and of all.

    What a function makes of data tells more than its arguments do: they may be in a dictionary, in
    a closure, or a few numbers that are broadcast over many.

    Example::

        from pyro_implicit.ops.largest_tensor import LargestTensor

        with LargestTensor() as largest:
            torch.ones(3, 4).exp().sum()
        largest.numel, largest.total  # 12, and 25
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.numel())
                self.total += leaf.numel()
        return found
