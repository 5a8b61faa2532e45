"""The candidates of a search for a start, each scored on the same draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from pyro_implicit.exceptions import ImplicitError
from pyro_implicit.guides.initialization.copies import Copies
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.guides.initialization.start_report import Trial

__all__ = ["FAILURES", "Trials"]

#: what a candidate may fail with; it is then dropped, and the report says so
FAILURES = (ImplicitError, RuntimeError, ValueError, ArithmeticError)

_NOTE_IF_NOT_FINITE = "not finite: dropped"
_MIN_NATS_TOLD = 0.1


@dataclass
class Trials:
    """
    One density, and what has been tried on it so far.

    :param SearchDensity density: the density.
    :param int num_samples: draws that Gaussians are compared on.
    :param sizes: of the parts of the latents that the guide makes independently.
    :param Copies copies: of a small network, how many copies a Gaussian has.
    """

    density: SearchDensity
    num_samples: int
    sizes: Sequence[int]
    copies: Copies | None = None
    locations: list[Trial] = field(default_factory=list)
    gaussians: list[Trial] = field(default_factory=list)
    starts: dict[str, GaussianStart] = field(default_factory=dict)
    _worth: dict[str, float] = field(default_factory=dict)

    def climb(self, name: str, loc: Tensor, num_steps: int) -> tuple[float, Tensor]:
        """
        Scores a location by what a few steps uphill reach.

        :param str name: its name in the report.
        :param torch.Tensor loc: shape ``(m,)``.
        :param int num_steps: number of gradients.
        :returns: the score, and the best point that was met.
        """
        try:
            point, score = self.density.ascend(loc, num_steps)
            note = "" if math.isfinite(score) else _NOTE_IF_NOT_FINITE
        except FAILURES as error:
            point, score, note = loc, -math.inf, _first_line(error)
        self.locations.append(Trial(name, score, note))
        return score, point

    def judge(self, name: str, find: Callable[[], tuple[GaussianStart, str]]) -> None:
        """
        Makes a Gaussian and scores it by its evidence bound, or notes why that fails.

        :param str name: its name in the report.
        :param find: makes it, with a note.
        """
        try:
            start, note = find()
            start = start.in_blocks(self.sizes)
            assert start.factor is not None
            score = objective(self.density, start.loc, start.factor, self.num_samples)
            nats = self.nats_of_copies(start.loc, start.factor)
        except FAILURES as error:
            self.gaussians.append(Trial(name, -math.inf, _first_line(error)))
            return
        if math.isfinite(score):
            self.starts[name], self._worth[name] = start, score + nats
            copies = f"{nats:.1f} more with its copies" if nats >= _MIN_NATS_TOLD else ""
            note = ", ".join(part for part in (note, copies) if part)
        else:
            note = _NOTE_IF_NOT_FINITE
        self.gaussians.append(Trial(name, score, note))

    def best(self, but: str | None = None) -> str | None:
        """
        The name of the Gaussian with the highest score, None if all have failed.

        Of a small network it is that of all copies of the Gaussian together.

        :param str but: the name of one that is not to be looked at.
        """
        names = [name for name in self._worth if name != but]
        return max(names, key=lambda name: self._worth[name], default=None)

    def nats_of_copies(self, loc: Tensor, factor: Tensor) -> float:
        """What :class:`Copies` says, or 0."""
        return 0.0 if self.copies is None else self.copies.nats(loc, factor)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    line = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{line[:120]}: dropped"
