"""Writing in place under ``torch.func.vmap``: new tensors that belong to each of what is mapped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from pyro_implicit._random import read_random_state, write_random_state
from pyro_implicit.handlers.mapped.mappable_logarithm import mappable_logarithm

__all__ = ["WritingMap"]

_FUNCTIONS_MAKING_TENSORS = {
    torch.zeros,
    torch.ones,
    torch.empty,
    torch.full,
    torch.eye,
    torch.tensor,
    torch.zeros_like,
    torch.ones_like,
    torch.empty_like,
    torch.full_like,
    torch.clone,
    Tensor.clone,
    Tensor.contiguous,
    Tensor.repeat,
    Tensor.new_zeros,
    Tensor.new_ones,
    Tensor.new_empty,
    Tensor.new_full,
    Tensor.new_tensor,
}


_WARNING_OF_NO_VMAP_RULE = "There is a performance drop"  # how the warning begins
_One = Callable[[Tensor], Any]
_Mapped = Callable[[_One], Any]


class _NewOfEach(TorchFunctionMode):
    """Makes new tensors, and copies, as many as there are mapped entries."""

    def __init__(self, zero: Tensor) -> None:
        super().__init__()
        self._zero = zero

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function not in _FUNCTIONS_MAKING_TENSORS or not made.is_floating_point():
            return made
        return made if made.is_leaf and made.requires_grad else made + self._zero.to(made)


class WritingMap:
    """
    ``torch.func.vmap`` of one function, and where that fails the same if it writes in place.

    A tensor that a function makes belongs to all entries as long as nothing of an entry is in it,
    and ``vmap`` refuses to write into it. Then each entry gets one of its own, at the price of
    computing with these: it is only done where the plain map has failed.
    """

    def __init__(self) -> None:
        #: whether the function writes in place; None before the first call
        self.writes: bool | None = None
        self._lacks_rules = False  # whether torch maps an operation of it one by one

    def __call__(self, function: Callable[[Tensor], Any], entries: Tensor, **options: Any) -> Any:
        """
        Maps a function over the first dimension.

        :param function: of one entry.
        :param torch.Tensor entries: shape ``(B, ...)``.
        :param options: of ``torch.func.vmap``.
        :returns: what ``vmap`` does.
        :raises RuntimeError: what the plain map raises, if neither can be.
        """

        def writing(entry: Tensor) -> Any:
            zero = torch.zeros_like(entry.reshape(-1)[:1], dtype=torch.float32).reshape(())
            with _NewOfEach(zero):
                return function(entry)

        def mapped(one: Callable[[Tensor], Any]) -> Any:
            with mappable_logarithm():
                return vmap(one, **options)(entries)

        if self.writes is None:
            return self._first(mapped, function, writing)
        with _rules_are("ignore") if self._lacks_rules else nullcontext():
            return mapped(writing if self.writes else function)

    def _first(self, mapped: _Mapped, function: _One, writing: _One) -> Any:
        """The first call, which finds out how the function is to be mapped."""
        before = read_random_state()
        try:
            found = self._once(mapped, function, before)
            self.writes = False
        except RuntimeError as error:
            if not _is_of_writing(error):
                raise
            write_random_state(before)
            try:
                found = self._once(mapped, writing, before)
            except Exception:  # whatever it does beside that: the first error is the one to see
                raise error from None
            self.writes = True
        return found

    def _once(self, mapped: _Mapped, function: _One, before: dict[str, Any]) -> Any:
        try:
            with _rules_are("error"):
                return mapped(function)
        except UserWarning as warning:
            if _WARNING_OF_NO_VMAP_RULE not in str(warning):
                raise
        self._lacks_rules = True
        write_random_state(before)
        with _rules_are("ignore"):
            return mapped(function)


@contextmanager
def _rules_are(action: Literal["error", "ignore"]) -> Iterator[None]:
    """Torch tells, at each call, of operations that it maps one by one: no matter of the user's."""
    with warnings.catch_warnings():
        warnings.filterwarnings(action, _WARNING_OF_NO_VMAP_RULE)
        yield


def _is_of_writing(error: RuntimeError) -> bool:
    said = str(error)
    return "out-of-place" in said or "doesn't match the broadcast shape" in said
