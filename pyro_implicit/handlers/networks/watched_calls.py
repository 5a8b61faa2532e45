"""Networks that are watched as they are called."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

__all__ = ["WatchedCalls"]

_Self = TypeVar("_Self", bound="WatchedCalls")


class WatchedCalls:
    """A context that is told of each ``torch.nn.Module`` that this thread calls within."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._hook: RemovableHandle | None = None

    def __enter__(self: _Self) -> _Self:
        self._hook = register_module_forward_pre_hook(self._before)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _before(self, module: nn.Module, given: Any) -> None:
        if threading.get_ident() == self._thread:
            self.note(module, given)

    def note(self, module: nn.Module, given: Any) -> None:
        """
        Notes a call, before it is made.

        :param module: what is called.
        :param given: its positional arguments.
        """
        raise NotImplementedError
