"""What an automatic start tried, and why it took what it took."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["StartReport", "Trial"]

_MAX_SHOWN_DEFICIT_NATS = 1e6  # to the best score


@dataclass(frozen=True)
class Trial:
    """
    One candidate for the start of a guide.

    :param str name: what was tried.
    :param float score: its score, minus infinity if it failed.
    :param str note: what is to be said of it, such as why it was dropped.
    """

    name: str
    score: float
    note: str = ""

    def __str__(self) -> str:
        return self.notes()

    def notes(self, best: float = -math.inf) -> str:
        """
        The candidate in words.

        :param float best: the highest score of all; one that is far below is not a number to read.
        :returns: its name, its score and the note.
        """
        shown = f"{self.score:.6g}" if self.score >= best - _MAX_SHOWN_DEFICIT_NATS else "far below"
        return f"{self.name} {shown}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class StartReport:
    """
    What an automatic start tried, and why it took what it took.

    :param str location: the name of the location that was taken.
    :param str taken: the name of the Gaussian that was taken.
    :param str reason: why, in words.
    :param locations: scores of the locations: the log-joint density after a few steps uphill.
    :param gaussians: scores of the Gaussians: the evidence lower bound on draws that all share.
    :param int num_gradients: gradients of the model that it took.
    :param float seconds: how long it took.
    """

    location: str
    taken: str
    reason: str
    locations: tuple[Trial, ...] = ()
    gaussians: tuple[Trial, ...] = ()
    num_gradients: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"start: {self.taken}, at {self.location}: {self.reason}"]
        for what, trials in (
            ("log-joint of locations", self.locations),
            ("evidence bound of Gaussians", self.gaussians),
        ):
            if trials:
                best = max(trial.score for trial in trials)
                notes = ", ".join(trial.notes(best) for trial in trials)
                lines.append(f"  {what}: {notes}")
        if self.num_gradients:
            lines.append(f"  {self.num_gradients} gradients, {self.seconds:.1f} s")
        return "\n".join(lines)
