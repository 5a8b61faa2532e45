"""How many plates a model and a guide have, found by one run of each pair."""

from __future__ import annotations

from typing import Any

from pyro_implicit._program_ref import ProgramRef
from pyro_implicit.objectives.particles.draw_particle import plate_nesting

__all__ = ["PlateNestings"]

_MAX_PAIRS = 32  # of models and guides; where there are more, the oldest is looked at again
_Pair = tuple[ProgramRef, ProgramRef, int]


class PlateNestings:
    """
    Knows the pairs of a model and a guide that were run, and keeps none of them alive.

    Each is run once, also where an objective is shared by several that are trained in turns: a run
    takes as long as half a step. It moves no random numbers.
    """

    def __init__(self) -> None:
        self._pairs: list[_Pair] = []

    def find(
        self,
        model: Any,
        guide: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        otherwise: int | None = None,
    ) -> int:
        """
        The number of plate dimensions.

        :param model: a Pyro model.
        :param guide: its guide.
        :param tuple args: arguments of both, which a first run gets.
        :param dict kwargs: keyword arguments of both.
        :param int otherwise: what is taken where they do not run by themselves; None: their error.
        :returns: of model and guide, the greater of the two.
        """
        for known_model, known_guide, nesting in self._pairs:
            if known_model.is_of(model) and known_guide.is_of(guide):
                return nesting
        try:
            nesting = plate_nesting(model, guide, args, kwargs)
        except Exception:  # whatever they raise
            if otherwise is None:
                raise
            nesting = otherwise
        alive = [pair for pair in self._pairs if pair[0]() is not None and pair[1]() is not None]
        self._pairs = [*alive[1 - _MAX_PAIRS :], (ProgramRef(model), ProgramRef(guide), nesting)]
        return nesting

    def __reduce__(self) -> Any:
        return PlateNestings, ()  # weak references cannot be pickled; to run again is harmless
