"""A level loss that hides deviations that are off: the run goes on, and no farther than told."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.training.fitting.pace import course

OFF = "deviations are off"


def normal() -> None:
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def fitted(monkeypatch: pytest.MonkeyPatch, answers: list[Any], **options: Any) -> Any:
    """A fit whose looks at deviations have these answers, and what they were asked after."""
    asked: list[int] = []
    left = iter(answers)

    def look(*_: Any) -> list[str]:
        asked.append(1)
        answer = next(left)
        if isinstance(answer, BaseException):
            raise answer
        return [OFF] if answer else []

    monkeypatch.setitem(fit.__globals__, "wrong_widths", look)
    monkeypatch.setitem(fit.__globals__, "_MIN_STEPS_TO_JUDGE_GUIDE", 100)
    monkeypatch.setattr(course, "MIN_STEPS_TO_JUDGE", 120)
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(normal, init_from=None)
    given: dict[str, Any] = {"seed": 0, "progress": False, "num_steps": 3000} | options
    return fit(normal, guide, **given), len(asked)


@cache
def fitted_once() -> Any:
    """The same without a reason to go on, for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        return fitted(patch, [False])


@pytest.mark.long
def test_it_takes_as_many_steps_again_until_they_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    once, num_once = fitted_once()
    result, num_asked = fitted(monkeypatch, [True, True, False])
    assert once.reason == result.reason == "converged" and (num_once, num_asked) == (1, 3)
    assert result.num_steps >= 4 * once.num_steps and result.warnings == []
    assert result.history[: once.num_steps] == once.history
    assert result.rates[once.num_steps] == result.rates[0]  # at the full rate again


@pytest.mark.long
def test_the_limit_ends_it_and_then_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = fitted(monkeypatch, [True] * 9, num_steps=700)
    assert result.num_steps == 700 and OFF in result.warnings


@pytest.mark.long
def test_validation_and_an_interruption_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    once, _ = fitted_once()
    result, _ = fitted(monkeypatch, [True], validation=lambda: 0.0, num_steps=300)
    assert result.num_steps <= 300 and OFF in result.warnings
    result, _ = fitted(monkeypatch, [KeyboardInterrupt(), True])
    assert result.num_steps == once.num_steps and OFF in result.warnings


@pytest.mark.long
def test_that_it_was_level_is_told_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    once, _ = fitted_once()
    limit = once.num_steps + 100  # too few to be asked again
    result, _ = fitted(monkeypatch, [True, False], num_steps=limit)
    [told] = result.warnings
    assert result.reason == "limit" and "the objective was level after" in told
