"""Running statistics of networks, which go wherever parameters go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_implicit.handlers.still_statistics import is_kept
from pyro_implicit.training.fitting.parameter_copies import copied, set_to

__all__ = ["RunningStatistics"]


class RunningStatistics:
    """
    Buffers that a step moves, such as the means of batch normalisation.

    No gradient moves them, and a network is not what it was without them: whoever brings parameters
    back brings these back, too. They belong to networks that a model calls, wherever these are
    kept. Names tell the order of the first calls, which is the same in each process.
    """

    def __init__(self) -> None:
        #: a module may replace the tensor, also by one of another shape, which is no statistic
        self._places: list[tuple[nn.Module, str, torch.Size]] | None = None
        #: what they were before the step under way, by name
        self.before: dict[str, Tensor] = {}

    @property
    def are_known(self) -> bool:
        """Whether a step has shown which there are."""
        return self._places is not None

    @property
    def values(self) -> dict[str, Tensor]:
        """All running statistics, by name: the tensors themselves."""
        return {
            f"running statistic {k} ({name})": buffer
            for k, (module, name, shape) in enumerate(self._places or ())
            if (buffer := _statistic(module, name, shape)) is not None
        }

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Keeps what they were before a step; in the first one, finds those that move."""
        if self._places is not None:
            self.before = copied(self.values)
            yield
            return
        seen: dict[nn.Module, dict[str, Tensor]] = {}
        try:
            with _noting(seen):
                yield
        finally:
            each = [(m, name, was) for m, old in seen.items() for name, was in old.items()]
            moved = [(m, name, was) for m, name, was in each if _has_moved(m, name, was)]
            self._places = [(m, name, was.shape) for m, name, was in moved]
            self.before = dict(zip(self.values, (was for *_, was in moved), strict=True))

    def undo(self) -> None:
        """Takes back what the step under way did to them; the same if it is called twice."""
        set_to(self.values, self.before)

    def commit(self) -> None:
        """No step is under way: there is nothing to take back."""
        self.before = {}


def _statistic(module: nn.Module, name: str, shape: torch.Size) -> Tensor | None:
    """The buffer, if it is still one of that shape."""
    now = module._buffers.get(name)
    return now if now is not None and now.shape == shape and is_kept(now) else None


def _has_moved(module: nn.Module, name: str, was: Tensor) -> bool:
    now = _statistic(module, name, was.shape)
    return now is not None and not torch.equal(now, was)


@contextmanager
def _noting(seen: dict[nn.Module, dict[str, Tensor]]) -> Iterator[None]:
    """Copies the buffers of each module in training mode that this thread calls, before that."""
    thread = threading.get_ident()

    def note(module: nn.Module, _: Any) -> None:
        if module.training and module not in seen and threading.get_ident() == thread:
            own = {n: b for n, b in module._buffers.items() if b is not None and is_kept(b)}
            # within a map of draws that writes, a copy is one of each draw
            seen[module] = {name: one for name, one in copied(own).items() if is_kept(one)}

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
