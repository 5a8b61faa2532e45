"""How a run ends, by losses that are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_implicit.training.fitting.between_steps import Due
from pyro_implicit.training.fitting.pace.course import Course
from pyro_implicit.training.fitting.pace.learning_rate import LearningRate


class Square:
    """The loss by the same draws: lowest where the run starts."""

    class objective:  # noqa: N801
        num_particles = 8

    def __init__(self, at: torch.Tensor) -> None:
        self.at = at

    def by_seed(self, repeats: int) -> list[float]:
        return [float(self.at.detach() ** 2) + seed for seed in range(repeats)]


@pytest.mark.parametrize("limit", [600, 601, 1200])
def test_no_run_begins_anew_at_its_last_step(limit: int) -> None:
    """At 600 the loss is asked for the first time where cooling is due, so that both end there."""
    weight = torch.nn.Parameter(torch.zeros(1))
    loss: Any = Square(weight)
    run = Course(LearningRate(0.01, limit), True, None, loss, lambda: 1, None)
    random = torch.Generator().manual_seed(0)
    losses: list[float] = []
    while True:
        reason, due = run.next(losses, lambda: {"w": weight})
        for move in due:
            if move.moves:
                run.move(move, len(losses))
        if due:
            continue
        if reason is not None:
            break
        run.begin(len(losses), {"w": weight})
        weight.data.fill_(0.3)
        losses.append(5.0 + 0.02 * float(torch.randn((), generator=random)))
        if Due.ADD_TO_MEAN in run.after(losses):
            run.settling.add(len(losses), run.kept)
    assert len(losses) == limit and float(weight.detach()) == 0.0
    assert run.settling.is_start
    assert any("what it began as" in told for told in run.settling.notes())
