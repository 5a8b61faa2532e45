"""Running statistics of networks, which go wherever parameters go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn

from pyro_implicit.handlers.networks.noted_buffers import Noted, Place, is_kept, noted_buffers
from pyro_implicit.training.fitting.parameters.parameter_copies import copied, set_to

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
        self._places: list[_Statistic] | None = None
        self._num_met = 0
        #: what they were before the step under way, by name
        self.before: dict[str, Tensor] = {}
        self._seen: WeakSet[nn.Module] = WeakSet()

    @property
    def are_known(self) -> bool:
        """Whether a step has shown which there are."""
        return self._places is not None

    @property
    def values(self) -> dict[str, Tensor]:
        """All running statistics, by name: the tensors themselves."""
        return {
            one.label: buffer
            for one in self._places or ()
            if (buffer := one.buffer_of(one.module())) is not None
        }

    @property
    def come_in_turns(self) -> bool:
        """Whether a later step has met networks that the first one did not."""
        return any(one.is_later and one.module() is not None for one in self._places or ())

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Keeps what they were before a step, and finds those that move of networks it meets."""
        self.before = copied(self.values)
        with noted_buffers(self._seen) as noted:
            try:
                yield
            finally:
                found = _moved(noted, self._places is not None)
                noted.clear()
                self._take_in(found)

    def _take_in(self, found: list[tuple[_Statistic, Tensor]]) -> None:
        """Those of networks that are still there; a model may make one in each of its calls."""
        known = [one for one in self._places or () if one.module() is not None]
        places = {(id(one.module()), one.name) for one in known}
        for one, was in found:
            module = one.module()
            if module is not None and (id(module), one.name) not in places:
                one = replace(one, number=self._num_met)
                self._num_met += 1
                known.append(one)
                self.before[one.label] = was
        self._places = known

    def undo(self) -> None:
        """Takes back what the step under way did to them; the same if it is called twice."""
        set_to(self.values, self.before)

    def commit(self) -> None:
        """No step is under way: there is nothing to take back."""
        self.before = {}


@dataclass(frozen=True)
class _Statistic:
    """
    Where a running statistic is.

    A module may replace the tensor, also by one of another shape, which is none.
    """

    module: ref[nn.Module]
    name: str
    shape: torch.Size
    is_later: bool
    number: int = 0

    @property
    def label(self) -> str:
        return f"running statistic {self.number} ({self.name})"

    def buffer_of(self, module: nn.Module | None) -> Tensor | None:
        """The buffer, if it is still one of that shape."""
        now = None if module is None else module._buffers.get(self.name)
        return now if now is not None and now.shape == self.shape and is_kept(now) else None


def _moved(noted: Mapping[Place, Noted], is_later: bool) -> list[tuple[_Statistic, Tensor]]:
    """Those that have moved, and what they were; no network is held."""
    found = []
    for (module, name), (_, was) in noted.items():
        one = _Statistic(ref(module), name, was.shape, is_later)
        now = one.buffer_of(module)
        if now is not None and not torch.equal(now, was):
            found.append((one, was))
    return found
