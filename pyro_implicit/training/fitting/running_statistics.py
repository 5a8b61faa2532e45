"""Running statistics of networks, which go wherever parameters go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn

from pyro_implicit.handlers.noted_buffers import Noted, Place, is_kept, noted_buffers
from pyro_implicit.training.fitting.parameter_copies import copied, set_to

__all__ = ["RunningStatistics"]


class RunningStatistics:
    """
    Buffers that a step moves, such as the means of batch normalisation.

    No gradient moves them, and a network is not what it was without them: whoever brings parameters
    back brings these back, too. They belong to networks that a model calls, wherever these are
    kept. Names tell the order of the first calls, which is the same in each process but where a
    model calls its networks in turns.
    """

    def __init__(self) -> None:
        #: a module may replace the tensor, also by one of another shape, which is no statistic
        self._places: list[tuple[nn.Module, str, torch.Size]] | None = None
        #: what they were before the step under way, by name
        self.before: dict[str, Tensor] = {}
        #: whether a later step has met networks that the first one did not
        self.come_in_turns = False
        self._seen: WeakSet[nn.Module] = WeakSet()

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
        """Keeps what they were before a step, and finds those that move of networks it meets."""
        self.before = copied(self.values)
        with noted_buffers(self._seen) as noted:
            try:
                yield
            finally:
                self._take_in(noted)

    def _take_in(self, noted: Mapping[Place, Noted]) -> None:
        known = {(module, name) for module, name, _ in self._places or ()}
        moved = [
            (*place, one.value)
            for place, one in noted.items()
            if place not in known and _has_moved(*place, one.value)
        ]
        self.come_in_turns |= bool(moved) and self._places is not None
        self._places = [*(self._places or ()), *((m, n, was.shape) for m, n, was in moved)]
        now = {id(buffer): name for name, buffer in self.values.items()}
        self.before |= {now[id(m._buffers[n])]: was for m, n, was in moved}

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
