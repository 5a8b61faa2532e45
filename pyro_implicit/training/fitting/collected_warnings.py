"""Warnings of a run, kept in words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["collected_warnings"]

#: what torch says of itself, and no user can do anything about
_OF_TORCH = (
    "`torch.jit.script` is deprecated",  # when torch.func first loads its forward-mode rules
    "There is a performance drop because we have not yet implemented the batching rule",
)


@contextmanager
def collected_warnings(into: list[str]) -> Iterator[None]:
    """
    Python's warnings, each shown once, and kept in words too.

    :param list into: gets their texts.
    """
    with warnings.catch_warnings():
        show = warnings.showwarning

        def keep(message: Warning | str, *rest: Any, **options: Any) -> None:
            if any(text in str(message) for text in _OF_TORCH):
                return
            if str(message) not in into:
                into.append(str(message))
                show(message, *rest, **options)

        warnings.showwarning = keep
        yield
