"""The networks that a model calls, as they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["CalledNetworks"]


class CalledNetworks:
    """
    Notes each network that is called while it is watching, inside of ``with``.

    :param note: what to note of it before its first call.
    """

    def __init__(self, note: Callable[[nn.Module], Any] | None = None) -> None:
        self._note = note
        self._called: dict[nn.Module, Any] = {}
        self._hook: Any = None

    def __enter__(self) -> CalledNetworks:
        self._hook = register_module_forward_pre_hook(self._before)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _before(self, module: nn.Module, _: Any) -> None:
        if module not in self._called:
            self._called[module] = None if self._note is None else self._note(module)

    def outermost(self) -> dict[nn.Module, Any]:
        """
        Those that are no part of another one.

        :returns: in the order of their first calls, what was noted of each.
        """
        inner = {part for one in self._called for part in one.modules() if part is not one}
        return {one: noted for one, noted in self._called.items() if one not in inner}
