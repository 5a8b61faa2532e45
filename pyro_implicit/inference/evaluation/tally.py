"""What is kept of a batch of rows while draws pass, and the scores of each datum in the end."""

# Shape legend: M draws of the data, *datum the datum shape of an observation.
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.inference.evaluation.observation import Observation
from pyro_implicit.ops.scoring import central_interval, crps_of_sorted

__all__ = ["INTERVAL_LEVELS", "ClassTally", "DensityTally", "NumberTally"]

INTERVAL_LEVELS = (0.5, 0.9, 0.95)  # of central intervals
_MAX_NUMBERS_TO_SORT = 2**22  # at a time


class DensityTally:
    """The mean density over draws."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0

    def add(self, log_prob: Tensor) -> None:
        """
        Takes a draw into account.

        :param torch.Tensor log_prob: of each datum.
        """
        wide = log_prob.double()
        self.total = wide if self.total is None else torch.logaddexp(self.total, wide)
        self.count += 1

    def log_density(self) -> Tensor:
        """The log of the mean density, of each datum."""
        assert self.total is not None
        return self.total - math.log(self.count)


class NumberTally:
    """
    Means and draws of numbers.

    :param bool whole: whether they are counts.
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.mean: Any = 0.0
        self.draws: list[Tensor] = []
        self.count = 0

    def add(self, seen: Observation, outcomes: Tensor | None) -> None:
        """
        Takes a draw into account.

        :param Observation seen: the site at this draw.
        :param torch.Tensor outcomes: of its distribution, in front of its shape; None if it cannot
            be drawn from.
        """
        mean = seen.mean()
        if outcomes is not None:
            shape = (len(outcomes), *seen.values().shape)
            outcomes = outcomes.expand(torch.broadcast_shapes(outcomes.shape, shape))
            mean = outcomes.double().mean(0) if mean is None else mean
            self.draws.append(outcomes.reshape(len(outcomes), -1))
        self.mean = None if mean is None or self.mean is None else self.mean + mean
        self.count += 1

    def scores(self, seen: Observation) -> dict[str, Tensor]:
        """
        Scores each datum.

        :param Observation seen: the site at any draw.
        :returns: by name, datum shape.
        """
        observed = seen.values().double()
        found = {}
        if self.mean is not None:
            found["squared_error"] = (self.mean / self.count - observed).square()
            found["mean"] = self.mean / self.count
        found |= self._by_draws(observed)
        return {name: seen.averaged(value) for name, value in found.items()}

    def _by_draws(self, observed: Tensor) -> dict[str, Tensor]:
        """Scores of draws in order, some columns at a time."""
        if not self.draws:
            return {}
        draws, flat = torch.cat(self.draws), observed.flatten()
        parts = []
        step = max(_MAX_NUMBERS_TO_SORT // len(draws), 1)
        for start in range(0, draws.shape[-1], step):
            few = slice(start, start + step)
            parts.append(self._of_columns(draws[:, few].double(), flat[few]))
        scores = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: value.reshape(observed.shape) for name, value in scores.items()}

    def _of_columns(self, draws: Tensor, observed: Tensor) -> dict[str, Tensor]:
        """Scores of draws ``(M, entries)`` of what was observed, ``(entries,)``."""
        errors = (draws - observed).sort(0).values
        found = {"absolute_error": _median(errors).abs(), "crps": crps_of_sorted(errors)}
        for level in INTERVAL_LEVELS:
            low, high = central_interval(errors, level, self.whole)
            percent = f"{100 * level:g}"
            found[f"coverage_{percent}"] = ((low <= 0.0) & (high >= 0.0)).double()
            found[f"width_{percent}"] = high - low
            found[f"lower_{percent}"], found[f"upper_{percent}"] = low + observed, high + observed
        return found


def _median(ordered: Tensor) -> Tensor:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2.0


class ClassTally:
    """The mean class probabilities over draws."""

    def __init__(self) -> None:
        self._density = DensityTally()

    def add(self, seen: Observation, outcomes: Tensor | None) -> None:
        """
        Takes a draw into account.

        :param Observation seen: the site at this draw.
        :param outcomes: not used.
        """
        self._density.add(seen.log_probabilities())

    @property
    def probabilities(self) -> Tensor:
        """Shape ``(*batch, *event of labels, C)``."""
        return self._density.log_density().exp()

    def scores(self, seen: Observation) -> dict[str, Tensor]:
        """
        Scores each datum.

        :param Observation seen: the site at any draw.
        :returns: by name, datum shape.
        """
        log_probabilities, labels = self._density.log_density(), seen.labels()
        log_of_label = log_probabilities.gather(-1, labels[..., None])[..., 0]
        probabilities, of_label = log_probabilities.exp(), log_of_label.exp()
        right = (probabilities.argmax(-1) == labels).double()
        brier = probabilities.square().sum(-1) - 2.0 * of_label + 1.0
        if probabilities.shape[-1] == 2:  # the square of one error, not of both
            brier = brier / 2.0
        found = {"accuracy": right, "nll": -log_of_label, "brier": brier}
        return {name: seen.averaged(value) for name, value in found.items()}

    def calibration(self, seen: Observation) -> tuple[Tensor, Tensor]:
        """
        Tells how sure each prediction was, and whether it was right.

        :param Observation seen: the site at any draw.
        :returns: confidence and rightness of each label that is not masked, flat.
        """
        confidence, predicted = self.probabilities.max(-1)
        kept = seen.unmasked_entries(confidence)
        return confidence[kept].clamp(0.0, 1.0), (predicted == seen.labels())[kept]
