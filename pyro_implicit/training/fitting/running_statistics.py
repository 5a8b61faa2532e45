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
        self._places: list[tuple[nn.Module, str]] | None = None  # a module may replace the tensor
        #: what they were before the last step, by name
        self.before: dict[str, Tensor] = {}

    @property
    def values(self) -> dict[str, Tensor]:
        """As they are now, the tensors themselves, by name."""
        return {
            f"running statistic {k} ({name})": module.get_buffer(name)
            for k, (module, name) in enumerate(self._places or ())
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
            each = [(module, name) for module, old in seen.items() for name in old]
            self._places = [(m, n) for m, n in each if not torch.equal(m.get_buffer(n), seen[m][n])]
            was = (seen[module][name] for module, name in self._places)
            self.before = dict(zip(self.values, was, strict=True))

    def undo(self) -> None:
        """Takes back what the last step did to them; the same if it is called twice."""
        set_to(self.values, self.before)


@contextmanager
def _noting(seen: dict[nn.Module, dict[str, Tensor]]) -> Iterator[None]:
    """Copies the buffers of each module in training mode that this thread calls, before that."""
    thread = threading.get_ident()

    def note(module: nn.Module, _: Any) -> None:
        if module.training and module not in seen and threading.get_ident() == thread:
            own = {n: b for n, b in module._buffers.items() if b is not None and is_kept(b)}
            seen[module] = copied(own)

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
