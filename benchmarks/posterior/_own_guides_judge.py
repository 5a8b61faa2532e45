"""One judge for all guides of latents of each row: importance weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.posterior._own_guides_problem import Problem
from pyro_implicit.objectives import IWAE

__all__ = ["judged"]

_AT_ONCE = 50  # rows


@torch.no_grad()
def judged(
    problem: Problem, guide: Any, x: Tensor, num_draws: int, rows: Tensor | None = None
) -> tuple[float, float]:
    """
    Log evidence by importance weights, and the evidence bound, both in nats a row.

    :param Problem problem: whose model it is.
    :param guide: with a density: of this package or of Pyro.
    :param Tensor x: rows of data.
    :param int num_draws: of each row.
    :param rows: their numbers, for guides that have a value for each.
    """
    sums = [0.0, 0.0]
    for chosen in torch.arange(len(x)).split(_AT_ONCE):
        numbers = None if rows is None else rows[chosen]
        for place, alpha in enumerate((0.0, 1.0)):
            judge = IWAE(num_draws, alpha=alpha, vectorize_particles=True, max_plate_nesting=1)
            loss = judge.loss(problem.model, guide, x[chosen], numbers)
            # the model scales a minibatch to all rows
            sums[place] -= float(loss) * len(chosen) / len(problem.train)
    evidence, bound = (total / len(x) for total in sums)
    return evidence, bound
