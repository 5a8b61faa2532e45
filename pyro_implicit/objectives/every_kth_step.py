"""Counts of training steps, for objectives that estimate a dear part in every k-th one only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn

from pyro_implicit.objectives.implicit_site import ImplicitSite

__all__ = ["StepCounts"]


@dataclass
class _Count:
    """
    The training steps that one site of a guide has been met in.

    :param int order: how many counts there were before.
    :param guide: a weak reference to the guide that is counted.
    :param int steps: its training steps before the present one.
    :param int step: the objective's step in which it was last met.
    """

    order: int
    guide: Callable[[], Any]
    steps: int = -1
    step: int = 0


class StepCounts:
    """
    Counts training steps for each implicit site of each guide, and keeps none of them alive.

    The key is the guide and the name of its site: generators may be wrapped (conditional guides)
    or made anew in each call. For a guide that is itself made anew for each step the generator that
    stays takes its place.
    """

    def __init__(self) -> None:
        self._by_guide: WeakKeyDictionary[Any, dict[str, _Count]] = WeakKeyDictionary()
        self._by_generator: WeakKeyDictionary[nn.Module, _Count] = WeakKeyDictionary()
        self._to_come: list[int] = []
        self._num_counts = 0

    def __len__(self) -> int:
        return len(self._counts())

    def take(self, step: int, guide: Any, site: ImplicitSite) -> int:
        """
        Counts a training step of one site of a guide.

        :param int step: number of the objective's training step, from 1.
        :param guide: the guide that is trained in it.
        :param ImplicitSite site: one of its implicit sites.
        :returns: how many earlier steps have met this site; the same for all draws of one step.
        """
        guide = guide.__self__ if inspect.ismethod(guide) else guide
        origin = site.distribution.generator.origin
        counts = self._by_guide.setdefault(guide, {})
        count = counts.get(site.name) or self._inherited(origin) or self._new()
        counts[site.name] = self._by_generator[origin] = count
        count.guide = ref(guide)
        if count.step != step:
            count.step, count.steps = step, count.steps + 1
        return count.steps

    def of(self, guide: Any) -> dict[str, int]:
        """
        The training steps that each site of a guide has been met in, less one.

        :param guide: the guide.
        :returns: by the site's name; empty for a guide that has not been met.
        """
        return {name: count.steps for name, count in self._of(guide).items()}

    def put(self, guide: Any, steps: dict[str, int]) -> None:
        """
        Counts steps of a guide that were taken, or were not, unseen.

        :param guide: the guide.
        :param dict steps: as :meth:`of` gives them.
        """
        counts = self._of(guide)
        for name, taken in steps.items():
            counts[name].steps = taken

    def _of(self, guide: Any) -> dict[str, _Count]:
        guide = guide.__self__ if inspect.ismethod(guide) else guide
        return self._by_guide.get(guide, {})

    def _inherited(self, origin: nn.Module) -> _Count | None:
        count = self._by_generator.get(origin)
        return count if count is not None and count.guide() is None else None

    def _new(self) -> _Count:
        steps = self._to_come.pop(0) if self._to_come else -1
        self._num_counts += 1
        return _Count(self._num_counts, lambda: None, steps)

    def _counts(self) -> list[_Count]:
        every = [count for counts in self._by_guide.values() for count in counts.values()]
        found = {count.order: count for count in [*every, *self._by_generator.values()]}
        return [found[order] for order in sorted(found)]

    def state(self) -> list[int]:
        """Steps that each site has been met in, less one, in the order of their first step."""
        return [count.steps for count in self._counts()] + self._to_come

    def load(self, steps: list[int]) -> None:
        """
        Forgets everything and begins at what :meth:`state` returned, for the next guide.

        :param list steps: one number for each site.
        """
        self._by_guide.clear()
        self._by_generator.clear()
        self._to_come = list(steps)
