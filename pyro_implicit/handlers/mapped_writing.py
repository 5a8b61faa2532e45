"""Writing in place under ``torch.func.vmap``: new tensors that belong to each of what is mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from pyro_implicit._random import read_random_state, write_random_state

__all__ = ["WritingMap"]

_MAKERS = {
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


class _NewOfEach(TorchFunctionMode):
    """Makes new tensors, and copies, as many as there are mapped entries."""

    def __init__(self, zero: Tensor) -> None:
        super().__init__()
        self._zero = zero

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function not in _MAKERS or not made.is_floating_point():
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

        if self.writes is not None:
            return vmap(writing if self.writes else function, **options)(entries)
        before = read_random_state()
        try:
            found = vmap(function, **options)(entries)
            self.writes = False
        except RuntimeError as error:
            if not _is_of_writing(error):
                raise
            write_random_state(before)
            try:
                found = vmap(writing, **options)(entries)
            except Exception:  # whatever it does beside that: the first error is the one to see
                raise error from None
            self.writes = True
        return found


def _is_of_writing(error: RuntimeError) -> bool:
    said = str(error)
    return "out-of-place" in said or "doesn't match the broadcast shape" in said
