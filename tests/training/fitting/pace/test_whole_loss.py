"""The loss of all rows, by which a run in batches ends."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.training.fitting.pace.stall import Slope
from pyro_implicit.training.fitting.pace.whole_loss import WholeLoss


class Given:
    """An objective whose losses are known."""

    def __init__(self, *losses: float) -> None:
        self.losses = [loss for loss in losses for _ in range(4)]

    def loss(self, *_: Any) -> float:
        loss = self.losses.pop(0)
        if math.isnan(loss):
            raise NonFiniteError("here")
        return loss


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([9, 8, 7, 1, 1, 1], [False] * 6),  # it fell a lot
        ([1] * 6, [False] * 5 + [True]),
        ([3, 1, 1, 1, 1, 1, 1], [False] * 6 + [True]),
        ([1, 2, 3, 2, 3, 4], [False] * 5 + [True]),
        ([1, 1, 1, 0.96, 0.96, 0.96], [False] * 5 + [True]),
        ([1, 1, 1, 0.94, 0.94, 0.94], [False] * 6),
        ([1, 1, 1, 1, math.nan, 1], [False] * 5 + [True]),  # nothing to wait for
    ],
)
def test_it_is_level_when_three_looks_are_no_better_than_three_before(
    losses: list[float], expected: list[bool]
) -> None:
    whole = WholeLoss(lambda: None, lambda: None, Given(*losses), ((), {}))
    assert [whole.look(step) for step in range(len(losses))] == expected
    again = WholeLoss(lambda: None, lambda: None, Given(losses[-1]), ((), {}), whole.values)
    assert again.look(len(losses) - 1) == expected[-1]  # the same look once more
    assert len(again.values) == len(losses)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 40, subsample_size=len(x)):
            pyro.sample("x", dist.Normal(w * self.norm(x[:, None])[:, 0], 1.0), obs=x)


def test_a_look_draws_the_same_and_leaves_no_trace() -> None:
    x = torch.linspace(0, 1, 40)
    model = Noisy()
    guide = HyperNetworkGuide(model, init_from=None)
    guide(x)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    whole = WholeLoss(model, guide, LinearisedELBO(2), ((x,), {}))
    whole.look(1), whole.look(2)
    (_, first), (_, second) = whole.values
    assert first == second
    assert torch.equal(state, torch.get_rng_state()) and model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.long
def test_a_run_in_batches_keeps_what_it_has_seen_of_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_implicit.training.fitting.pace.course.MIN_STEPS_TO_JUDGE", 40)
    x = torch.linspace(0, 1, 40)
    batches = [(x[:20],), (x[20:],)]

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 40, subsample_size=len(x)):
            pyro.sample("x", dist.Normal(w, 1.0), obs=x)

    result = fit(
        model,
        HyperNetworkGuide(model, init_from=None),
        batches=batches,
        num_steps=90,
        seed=0,
        progress=False,
    )
    assert [step for step, _ in result.state["whole"]] == [40, 44, 48, 52, 57]


@pytest.mark.long
@pytest.mark.parametrize("rows", [40, 5])
def test_what_the_noise_of_batches_hides_is_told(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_implicit.training.fitting.pace.course.MIN_STEPS_TO_JUDGE", 40)
    level = Slope(gain=0.0, standard_error=0.0, tolerance=7.0)
    monkeypatch.setattr("pyro_implicit.training.fitting.pace.course.slope_of", lambda *_: level)
    x = torch.linspace(0, 1, 40)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x), subsample_size=rows) as chosen:
            pyro.sample("x", dist.Normal(w, 10.0), obs=x[chosen])

    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, x, num_steps=450, seed=0, progress=False)
    assert result.reason == "converged"
    told = [text for text in result.warnings if "hides gains of less than 7 nats" in text]
    assert len(told) == (rows < 40)
