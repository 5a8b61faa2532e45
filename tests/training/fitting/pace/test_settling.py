"""The end of a run: at the mean of where it wandered, and never above the start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit
from pyro_implicit.training.fitting.pace import course
from pyro_implicit.training.fitting.pace import settling as module
from pyro_implicit.training.fitting.pace.settling import Settling
from pyro_implicit.training.fitting.pace.whole_loss import WholeLoss


class Given:
    """Losses as a function of a parameter, with noise that every call with a seed repeats."""

    num_particles = 4

    def __init__(self, w: Tensor, noise: float = 0.0) -> None:
        self.w, self.noise, self.calls = w, noise, 0

    def loss(self, model: Any, guide: Any) -> float:
        self.calls += 1
        return float(self.w.square().sum() + self.noise * torch.randn(()))


def settling_of(w: Tensor, noise: float = 0.0) -> Settling:
    return Settling(WholeLoss(lambda: None, lambda: None, Given(w, noise), ((), {})))


def walked(w: Tensor, *values: float) -> Settling:
    """From the first value over the others, each the fifth step."""
    settling = settling_of(w)
    w.fill_(values[0])
    settling.begin({"w": w})
    for number, value in enumerate(values[1:], 1):
        w.fill_(value)
        settling.add(5 * number, {"w": w})
    return settling


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_the_mean_weighs_later_values_more(values: list[float]) -> None:
    w = torch.zeros(1, dtype=torch.float64)
    settling = walked(w, 0.0, *values)
    for _ in range(2):  # a step that is added again counts once
        settling.add(5 * len(values), {"w": w})
    weights = [math.comb(k + 3, 3) for k in range(len(values))]  # as k**3
    expected = sum(a * b for a, b in zip(weights, values, strict=True)) / sum(weights)
    settling.to_mean({"w": w})
    assert w.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("now", "is_level", "share"),
    [(0.5, True, 1.0), (1.0, True, 0.5), (9.0, True, 0.1), (9, 0, 0.3)],
)
def test_cooling_begins_where_half_a_nat_is_lost_by_wandering(
    now: float, is_level: bool, share: float
) -> None:
    w = torch.zeros(1)
    settling = walked(w, 3.0, 1.0, -0.25)  # a mean of zero
    w.fill_(math.sqrt(now))
    assert settling.plan({"w": w}, is_level) and settling.planned == pytest.approx(share)
    assert w.item() == pytest.approx(math.sqrt(now))  # only looked at
    w.fill_(0.0)
    assert not settling.plan({"w": w}, is_level)


@pytest.mark.long
def test_losses_at_the_start_are_compared_by_the_same_draws() -> None:
    w = torch.zeros(1)
    settling = settling_of(w, noise=100.0)
    w.fill_(1.0)
    settling.begin({"w": w})
    for value, is_above, is_worse in ((0.9, False, False), (1.1, False, True), (2.0, True, True)):
        settling.forget()
        settling.add(5, {"w": w.fill_(value)})
        assert settling.is_above_start({"w": w}) == is_above
        assert settling.is_worse_than_start({"w": w}) == is_worse


def test_it_goes_on_slower_from_the_start_three_times_and_then_stays_there() -> None:
    w = torch.zeros(1)
    settling = walked(w, 1.0, 5.0)
    for turn in range(1, 4):
        assert settling.is_above_start({"w": w}) and settling.may_slow
        for _ in range(2):  # once is as good as twice
            settling.slow(100 * turn, {"w": w})
        assert (w.item(), settling.factor) == (1.0, 0.25**turn)
        settling.add(100 * turn + 5, {"w": w.fill_(5.0)})
    assert not settling.may_slow and not settling.is_above_start({"w": w})
    assert settling.is_worse_than_start({"w": w}) and not settling.notes()
    settling.to_start({"w": w})
    settling.is_start = True
    assert w.item() == 1.0 and "(1), whose parameters were brought back" in settling.notes()[0]


def test_what_is_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    w, new = torch.ones(3), torch.ones(1)
    nothing = Settling(None)
    nothing.begin({"w": w})
    assert not nothing.wants(5) and not nothing.is_possible
    assert not nothing.plan({"w": w}, True) and not nothing.is_worse_than_start({"w": w})
    settling = walked(w, 1.0, 5.0)
    batches = Settling(None, settling.state())  # go on where a run of all data was interrupted
    assert not batches.plan({"w": w}, True) and not batches.is_above_start({"w": w})
    assert not batches.is_worse_than_start({"w": w})
    both = {"w": w, "new": new}  # met after the first step
    assert not settling.is_above_start(both) and not settling.is_worse_than_start(both)
    assert not settling.plan(both, True)
    monkeypatch.setattr(module, "_MAX_NUMBERS_TO_COPY", 2)
    many = settling_of(w)
    many.begin({"w": w})
    assert not many.is_possible and not many.is_worse_than_start({"w": w})


def test_losses_that_are_not_finite_are_no_reason() -> None:
    w = torch.zeros(1)
    settling = walked(w, math.nan, 1.0)
    assert not settling.is_above_start({"w": w}) and not settling.is_worse_than_start({"w": w})
    assert not walked(w, 1.0, math.nan).plan({"w": w.fill_(2.0)}, True)
    assert walked(w, 1.0).is_worse_than_start({"w": w.fill_(math.inf)})


def test_one_enormous_loss_does_not_hide_that_all_are_worse() -> None:
    w = torch.zeros(1)
    settling = walked(w, 0.0)
    w.fill_(1.0)
    settling.losses = lambda: [0.0] * 8 if w.item() == 0.0 else [1e9, *[0.1] * 7]  # type: ignore
    assert settling.is_worse_than_start({"w": w})
    settling.losses = lambda: [0.0] * 8 if w.item() == 0.0 else [1e9, *[-0.1] * 7]  # type: ignore
    assert not settling.is_worse_than_start({"w": w})


def test_it_goes_on_from_a_copy() -> None:
    w = torch.zeros(1)
    settling = walked(w, 1.0, 5.0, 6.0)
    settling.slow(10, {"w": w})
    settling.add(15, {"w": w.fill_(4.0)})
    loss = settling._loss
    again = Settling(loss, settling.state())
    for one in (settling, again):
        one.add(20, {"w": w.fill_(2.0)})
        one.to_mean({"w": w})
        assert (w.item(), one.factor) == (pytest.approx(2.4), 0.25)
        one.to_start({"w": w})
        assert w.item() == 1.0


def linear(num_latents: int, seed: int) -> tuple[Callable[..., None], tuple[Tensor, ...], float]:
    """A linear model, its data, and the logarithm of its evidence."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * num_latents, num_latents, generator=generator)
    y = x @ torch.randn(num_latents, generator=generator)
    y = y + torch.randn(len(x), generator=generator)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(num_latents), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w[..., None])[..., 0], 1.0), obs=y)

    covariance = torch.eye(len(x)) + x @ x.mT
    evidence = dist.MultivariateNormal(torch.zeros(len(x)), covariance).log_prob(y)
    return model, (x, y), float(evidence)


@pytest.mark.long
@pytest.mark.parametrize("lr", [0.02, 0.1])
def test_a_rate_that_is_too_high_does_not_end_above_the_start(lr: float) -> None:
    """The start is the posterior: nothing is left to gain, and all to lose."""
    model, data, evidence = linear(15, 0)
    guide = HyperNetworkGuide(model, init_from="laplace")
    objective = LinearisedELBO(4, vectorize_particles="vmap", path_gradient=False)
    options: dict[str, Any] = {"objective": objective, "lr": lr, "seed": 0, "progress": False}
    options["num_steps"] = 800
    fit(model, guide, *data, **options)
    with torch.no_grad():
        loss = LinearisedELBO(500, vectorize_particles="vmap").loss(model, guide, *data)
    assert -loss == pytest.approx(evidence, abs=0.15)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are looked at from 100 steps."""
    monkeypatch.setattr(course, "MIN_STEPS_TO_JUDGE", 100)


def overshot(validation: Any, **options: Any) -> tuple[Any, HyperNetworkGuide, Any, Any]:
    """A fit at a rate that leaves its start for good."""
    pyro.set_rng_seed(0)
    model, data, evidence = linear(15, 0)
    guide = HyperNetworkGuide(model, init_from="laplace")
    objective = LinearisedELBO(4, vectorize_particles="vmap", path_gradient=False)
    kept: dict[str, Any] = {"lr": 0.3, "num_steps": 200, "objective": objective, "progress": False}
    result = fit(model, guide, *data, validation=validation, seed=0, **kept | options)
    return result, guide, model, data


@pytest.mark.long
def test_a_start_that_comes_back_is_scored_before_validation_brings_others_back(
    short: None,
) -> None:
    scores = iter([0.0, 0.0, 1.0])  # what the guide began as is the best
    result, guide, model, data = overshot(lambda: next(scores))
    assert result.scores[0] == 1.0
    (told,) = (text for text in result.warnings if "that of the start" in text)
    assert "the guide is what it began as" in told and "before parameters were" in str(result)
    with torch.no_grad():
        loss = LinearisedELBO(500, vectorize_particles="vmap").loss(model, guide, *data)
    assert -loss == pytest.approx(linear(15, 0)[2], abs=0.15)


@pytest.mark.long
def test_better_scores_keep_their_parameters_and_nothing_else_is_said(short: None) -> None:
    scores = iter([0.0, 2.0, 1.0])
    result, guide, _, _ = overshot(lambda: next(scores))
    (told,) = (text for text in result.warnings if "that of the start" in text)
    assert "the parameters of the best validation score are back all the same" in told


@pytest.mark.long
def test_what_goes_on_from_a_validated_fit_is_not_told_to_be_another(short: None) -> None:
    """Losses of the last steps, and copies, are of parameters that were replaced."""
    scores = iter([2.0] + [0.0] * 40)
    result, guide, model, data = overshot(lambda: next(scores), lr=0.02)
    assert result.state["is_replaced"]
    options: dict[str, Any] = {"resume": result, "num_steps": 400, "progress": False}
    before = {
        name: value.clone() for name, value in guide.state_dict().items() if "weights" in name
    }
    again = fit(model, guide, *data, lr=1e-6, validation=lambda: 0.0, **options)
    assert not any("was resumed" in text or "went astray" in text for text in again.warnings)
    for name, value in before.items():
        torch.testing.assert_close(guide.state_dict()[name], value, rtol=1e-2, atol=1e-2)


class Broken(LinearisedELBO):
    """Broken off at one of its losses, which a run asks for where it is level or ends."""

    at = 0
    calls = 0

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return super().loss(*args, **kwargs)


def broken(at: int) -> tuple[Any, list[Tensor]]:
    """A fit whose loss number ``at`` is broken off, and that goes on."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, data, _ = linear(3, 1)
    guide = HyperNetworkGuide(model)
    objective = Broken(16, vectorize_particles="vmap", path_gradient=False)
    objective.at = at
    options: dict[str, Any] = {"objective": objective, "lr": 0.05, "progress": False}
    result = fit(model, guide, *data, seed=0, num_steps=100, **options)
    assert (result.reason == "interrupted") == bool(at)
    if at:
        result = fit(model, guide, *data, resume=result, num_steps=100, **options)
    return result, [param.detach().clone() for param in guide.parameters()]


@pytest.mark.long
def test_an_interrupted_look_goes_on_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_implicit.training.fitting.run.is_comparable", lambda _: True)
    monkeypatch.setattr("pyro_implicit.training.fitting.pace.course.MIN_STEPS_TO_JUDGE", 50)
    whole, first = broken(0)
    for at in (1, 10, 16, 18, 30):  # at the parameters, at the mean, at the start, at the end
        gone_on, second = broken(at)
        assert whole.history == gone_on.history and whole.rates == gone_on.rates
        assert all(map(torch.equal, first, second)) and whole.warnings == gone_on.warnings
