"""Running statistics of networks, which go wherever parameters go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pyro_implicit.handlers.noted_buffers import is_kept, noted_buffers
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
        with noted_buffers() as noted:
            try:
                yield
            finally:
                moved = [(m, n, was) for (m, n), (_, was) in noted.items() if _has_moved(m, n, was)]
                self._places = [(m, n, was.shape) for m, n, was in moved]
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
