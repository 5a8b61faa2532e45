"""Whether a program takes the numbers of a tensor out of PyTorch, where a recording loses them."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_implicit.ops.graphs.calling_frame import calling_frame, is_of_library

__all__ = ["ReadValues"]

#: functions that hand numbers to Python, NumPy or text without an operation of the dispatcher
_READING_FUNCTIONS = frozenset(
    {
        Tensor.__array__,
        Tensor.__complex__,
        Tensor.__dlpack__,
        Tensor.__float__,
        Tensor.__format__,
        Tensor.__index__,
        Tensor.__int__,
        Tensor.__repr__,
        Tensor.apply_,
        Tensor.map2_,
        Tensor.map_,
        Tensor.numpy,
        Tensor.tolist,
        torch.allclose,
        torch.equal,
        Tensor.allclose,
        Tensor.equal,
    }
)
#: functions that read the entries of a list of tensors, past the dispatcher; the position of the
#: list among their arguments
_POSITION_OF_READ_LIST = {
    torch.tensor: 0,
    torch.as_tensor: 0,
    torch.asarray: 0,
    Tensor.new: 1,
    Tensor.new_tensor: 1,
    Tensor.__getitem__: 1,
    Tensor.__setitem__: 1,
}
#: functions that read the places to cut at, if these are a tensor
_SPLITTING_FUNCTIONS = frozenset({torch.tensor_split, Tensor.tensor_split})
#: methods that give the memory, which libraries look at without reading it
_STORAGE_METHODS = frozenset({Tensor.storage, Tensor.untyped_storage})


class ReadValues(TorchFunctionMode):
    """
    Looks on while tensors are evaluated; ``found`` tells whether numbers were read.

    By whatever gives them to something else than tensors: lists, arrays, text, functions of Python
    and storages; and by ``torch.Tensor([w])``, which asks each entry for its number past the
    dispatcher. Other single numbers (``w.item()``) are what
    :data:`~pyro_implicit.ops.graphs.noticed_operation.NUMBER_READ` tells.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function."""
        self.found = (
            self.found
            or func in _READING_FUNCTIONS
            or (func in _STORAGE_METHODS and _is_asked_by_a_program(sys._getframe(1)))
            or _reads_entries(func, args, kwargs or {})
        )
        return func(*args, **(kwargs or {}))


def _is_asked_by_a_program(frame: Any) -> bool:
    """Whether a call comes of something else than a library."""
    frame = calling_frame(frame)
    return frame is None or not is_of_library(frame)


def _reads_entries(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function makes a tensor, an index or places of the numbers of other tensors."""
    given = [*args, *kwargs.values()]
    if func in _SPLITTING_FUNCTIONS:
        return any(isinstance(one, Tensor) for one in given[1:])
    if func not in _POSITION_OF_READ_LIST:
        return False
    position = _POSITION_OF_READ_LIST[func]
    what = given[position] if len(given) > position else None
    if func in (Tensor.__getitem__, Tensor.__setitem__):  # a tuple of tensors is several indices
        parts = what if isinstance(what, tuple) else (what,)
        return any(isinstance(part, list) and _holds_tensor(part) for part in parts)
    return isinstance(what, (list, tuple)) and _holds_tensor(what)


def _holds_tensor(entries: Any) -> bool:
    return any(
        isinstance(one, Tensor) or (isinstance(one, (list, tuple)) and _holds_tensor(one))
        for one in entries
    )
