"""Notices that a program asks for the value of a tensor, as a branch on it does."""

from __future__ import annotations

import ast
import linecache
import sys
import weakref
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from pyro_implicit.ops.graphs.calling_frame import calling_frame, is_of_library

__all__ = ["AskedValues"]

#: They hand a tensor's values to Python, which may branch on them.
_FUNCTIONS_READING_VALUES = frozenset(
    {
        Tensor.__bool__,
        Tensor.__float__,
        Tensor.__int__,
        Tensor.__index__,
        Tensor.__complex__,
        Tensor.__contains__,
        Tensor.__array__,
        Tensor.__dlpack__,
        Tensor.item,
        Tensor.tolist,
        Tensor.numpy,
        Tensor.is_nonzero,
        Tensor.equal,
        Tensor.allclose,
        torch.is_nonzero,
        torch.equal,
        torch.allclose,
    }
)
#: The shape of what they return depends on values, and Python can read it.
_FUNCTIONS_SIZED_BY_VALUES = frozenset(
    {
        Tensor.argwhere,
        Tensor.bincount,
        Tensor.masked_select,
        Tensor.nonzero,
        Tensor.unique,
        Tensor.unique_consecutive,
        torch.argwhere,
        torch.bincount,
        torch.masked_select,
        torch.nonzero,
        torch.unique,
        torch.unique_consecutive,
    }
)
_MASK_DTYPES = (torch.bool, torch.uint8)  # indexing by such a tensor is sized by its values, too


class AskedValues(TorchFunctionMode):
    """
    Follows tensors through a program, and what is made of them, to where a value is asked for.

    ``if (w > 0).any():``, ``float(w)``, ``x in w``, ``.item()``, ``.tolist()`` and NumPy ask, and
    so do shapes that values decide, as those of ``w[w > 0]`` and ``w.unique()``, but no others.
    What libraries ask (validation) is passed over, and so are ``assert``, ``if ...: raise ...`` and
    texts, which are for logs. Nothing is kept alive.

    :param tensors: to follow, each of any shape.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._followed: dict[int, weakref.ref[Tensor]] = {}
        #: where a value was asked for first, for a message
        self.place: str | None = None
        self.follow(tensors)

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """
        Follows more tensors.

        :param tensors: each of any shape.
        """
        self._follow(list(tensors))

    def follows(self, value: Any) -> bool:
        """
        Whether something is a tensor that is followed, or was made of one.

        :param value: anything.
        :returns: whether it is.
        """
        return self._is_followed(value)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function, and follows what it makes of tensors that are followed."""
        kwargs = kwargs or {}
        if not any(map(self._is_followed, _pytree.tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if self.place is None and self._asks(func, args, kwargs):
            self.place = _place(sys._getframe(1))
        made = func(*args, **kwargs)
        written = args[:1] if made is None else ()  # x[0] = w
        self._follow([made, written])
        return made

    def _asks(self, func: Any, args: Any, kwargs: Any) -> bool:
        if func in _FUNCTIONS_READING_VALUES or func in _FUNCTIONS_SIZED_BY_VALUES:
            return True
        if func is torch.where:  # of a condition alone: the places where it is true
            return len(args) + len(kwargs) == 1
        if func is Tensor.__getitem__:
            return any(
                isinstance(one, Tensor) and one.dtype in _MASK_DTYPES and self._is_followed(one)
                for one in _pytree.tree_leaves(args[1:])
            )
        if func in (torch.repeat_interleave, Tensor.repeat_interleave):
            return any(map(self._is_followed, (*args[1:], *kwargs.values())))
        return False

    def _follow(self, tensors: Any) -> None:
        for one in _pytree.tree_leaves(tensors):
            if isinstance(one, Tensor):
                self._followed[id(one)] = weakref.ref(one)

    def _is_followed(self, value: Any) -> bool:
        found = self._followed.get(id(value)) if isinstance(value, Tensor) else None
        return found is not None and found() is value


def _place(frame: Any) -> str | None:
    """The line that asks; None if it is one of a library, or the answer is yes or an error."""
    frame = calling_frame(frame)
    if frame is None or is_of_library(frame):
        return None
    name, line = frame.f_code.co_filename, frame.f_lineno
    if line in _lines_of_guards("".join(linecache.getlines(name, frame.f_globals))):
        return None  # true of all draws, or an error: nothing branches
    return f"line {line} of {Path(name).name}"


@lru_cache(maxsize=16)
def _lines_of_guards(source: str) -> frozenset[int]:
    """The lines of assertions, and of conditions of ``if ...:`` that do nothing but raise."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # of a notebook's own commands
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.If) and not node.orelse and _raises(node.body):
            found.update(range(node.lineno, (node.test.end_lineno or node.lineno) + 1))
    return frozenset(found)


def _raises(body: list[ast.stmt]) -> bool:
    """Whether statements end with an error, and before it make its message at most."""
    *before, last = body
    return isinstance(last, ast.Raise) and all(
        isinstance(one, (ast.Assign, ast.AnnAssign, ast.Expr)) for one in before
    )
