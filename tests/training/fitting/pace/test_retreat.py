"""Going back after a run was thrown off its way: when, where to, at what rate, and what is told."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import AdversarialELBO, LanczosELBO, LinearisedELBO, fit
from pyro_implicit.exceptions import NonFiniteError, StateError
from pyro_implicit.training.fitting.pace.retreat import Retreat, is_comparable
from tests.training.fitting import stubs
from tests.training.fitting.stubs import Bowl


def bowl(objective: Any, **options: Any) -> Any:
    options = {"num_steps": 400, "lr": 0.02, "seed": 0, "progress": False} | options
    return fit(stubs.model, stubs.guide, objective=objective, **options)


def noisy(level: float, count: int = 50) -> list[float]:
    return (level + torch.randn(count)).tolist()


def test_it_goes_back_to_the_copy_before_the_last_good_window() -> None:
    retreat, param, losses = Retreat(True), torch.zeros(2), list[float]()
    for number in range(1, 4):
        losses += noisy(10.0 - number)
        param.fill_(number)
        assert not retreat.look(losses, {"w": param})
    losses += noisy(100.0)
    param.fill_(99.0)
    assert retreat.look(losses, {"w": param}) and retreat.factor == 1.0
    for _ in range(2):  # twice is as good as once
        retreat.go_back(200, {"w": param, "new": torch.ones(1)})
        assert param.tolist() == [2.0, 2.0] and retreat.factor == 0.5
        assert retreat.retreats == [(200, 100)]
    (told,) = retreat.notes()
    assert "astray once" in told and "after 200 steps, to those after 100" in told


@pytest.mark.long
@given(st.floats(-1e6, 1e6), st.floats(0.01, 1e3), st.integers(0, 2**31))
def test_noise_and_any_fall_are_no_reason(level: float, noise: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    retreat, losses = Retreat(True), list[float]()
    for number in range(10):
        fall = noise * torch.randn(50, generator=generator) - 2 * number * noise
        losses += (level + fall).tolist()
        assert not retreat.look(losses, {"w": torch.zeros(1)})


def test_only_losses_that_mean_the_same_are_compared() -> None:
    rising = noisy(0.0) + noisy(1e6)
    for judges in (True, False):
        retreat = Retreat(judges)
        retreat.look(rising[:50], {"w": torch.zeros(1)})
        assert retreat.look(rising, {"w": torch.zeros(1)}) == judges
    assert all(map(is_comparable, (LinearisedELBO(), LanczosELBO(), Trace_ELBO())))
    assert not any(map(is_comparable, (AdversarialELBO(), Bowl())))


@pytest.mark.long
@given(st.integers(1, 230), st.floats(0.1, 1e3), st.booleans(), st.integers(0, 2**31))
def test_batches_in_any_order_are_no_reason_and_a_leap_is(
    num_batches: int, spread: float, in_order: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    levels = spread * torch.randn(num_batches, generator=generator).exp()
    levels = levels.sort().values if in_order else levels
    retreat, losses, steps = Retreat(True), list[float](), -(-(3 * num_batches + 200) // 50) * 50
    retreat.num_batches = num_batches
    for step in range(steps):
        noise = float(torch.randn((), generator=generator))
        losses.append(float(levels[step % num_batches]) + noise)
        assert not retreat.look(losses, {"w": torch.zeros(1)})
    # beyond every batch, and far more than batches differ from one to the next
    losses += [100.0 * float(levels.max() + 1.0)] * 50
    assert retreat.look(losses, {"w": torch.zeros(1)})


def test_batches_that_nobody_counted_are_not_compared() -> None:
    retreat = Retreat(True)
    retreat.num_batches = 0
    rising = noisy(0.0) + noisy(1e6)
    assert not retreat.look(rising[:50], {"w": torch.zeros(1)})
    assert not retreat.look(rising, {"w": torch.ones(1)})
    assert retreat.is_possible(100)  # after steps without a finite loss


@pytest.mark.long
def test_quiet_rows_before_loud_ones_do_not_halve_the_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = torch.tensor([0.1] * 60 + [30.0] * 60)
    batches = [(level * torch.randn(20, generator=generator),) for level in levels]

    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 2400, subsample_size=len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    options: dict[str, Any] = {"batches": batches, "progress": False, "objective": Trace_ELBO()}
    guide = AutoNormal(model)
    first = fit(model, guide, seed=0, num_steps=150, **options)
    second = fit(model, guide, num_steps=300, resume=first, **options)
    assert second.num_steps == 300 and not second.state["retreat"]["turns"]


def test_it_does_not_go_back_for_ever() -> None:
    retreat = Retreat(True)
    retreat.look(noisy(0.0), {"w": torch.zeros(1)})
    for step in range(1, 7):
        assert retreat.is_possible(step)
        retreat.go_back(step, {"w": torch.ones(1)})
        assert not retreat.is_possible(step)
    assert not retreat.is_possible(7) and retreat.factor == 0.5**6
    assert "6 times" in retreat.notes()[0]


@pytest.mark.long
def test_a_run_that_is_lost_goes_back_and_ends() -> None:
    """Ten steps without a finite loss, and the parameters are those of fifty steps before."""
    objective = Bowl(noise=0.0, events={step: math.nan for step in range(151, 161)})
    result = bowl(objective, num_steps=300)
    assert "10 steps were skipped" in result.warnings[0]
    assert "last after 150 steps, to those after 100" in result.warnings[1]
    assert result.rates[149:152] == [0.02, 0.01, 0.01]
    assert result.history[150] == pytest.approx(result.history[100])


@pytest.mark.long
def test_what_cannot_be_helped_is_an_error_in_the_end() -> None:
    lost = {step: math.nan for step in range(151, 999)}
    with pytest.raises(NonFiniteError, match="20 steps in a row"):
        bowl(Bowl(events=lost))


LOST: dict[int, Any] = {step: math.nan for step in range(151, 161)}


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Any, tuple[float, ...]]:
    """A run that loses its way, and where it ends."""
    pyro.clear_param_store()
    whole = bowl(Bowl(events=dict(LOST)), num_steps=260)
    return whole, stubs.value()


@pytest.mark.long
@pytest.mark.parametrize("stop", [120, 152, 157, 161, 170])
def test_it_resumes_to_the_bit(stop: int, uninterrupted: Any) -> None:
    whole, expected = uninterrupted
    first = bowl(Bowl(events=LOST | {stop: KeyboardInterrupt()}), num_steps=260)
    assert first.reason == "interrupted"
    rest = {step - stop + 1: event for step, event in LOST.items() if step >= stop}
    second = bowl(Bowl(events=rest), num_steps=260, resume=first, seed=None)
    assert second.history == whole.history and stubs.value() == expected
    assert second.rates == whole.rates


def test_a_state_without_its_copies_is_refused() -> None:
    result = bowl(Bowl(), num_steps=120)
    for bad in ({}, {"kept": 3}, result.state["retreat"] | {"turns": [1]}):
        result.state["retreat"] = bad
        with pytest.raises(StateError, match="no state to go on from"):
            bowl(Bowl(), num_steps=200, resume=result, seed=None)


@pytest.mark.slow
def test_a_rate_far_too_high_is_mended() -> None:
    """At this rate the fit is thrown off again and again; it ends at the posterior all the same."""
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))

    def model(x: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(mean, 0.01), obs=x)

    guide = AutoNormal(model)
    result = fit(model, guide, x, seed=0, lr=0.8, num_steps=1200, progress=False)
    exact = float(x.mean())
    assert abs(float(guide.median()["mean"]) - exact) < 0.01
    assert math.isfinite(result.loss)


def test_losses_without_their_entropy_in_some_steps_are_not_compared() -> None:
    assert is_comparable(LanczosELBO()) and not is_comparable(LanczosELBO(entropy_every=4))
