"""Checks of distributions that are passed and kept: the same verdict, and no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Gamma, Independent, LogNormal, Normal

from pyro_implicit.ops.graphs.noted_checks import NotedChecks

CHECKED: dict[str, Callable[[Any], Any]] = {
    "normal": lambda a: Normal(0.0, a, validate_args=True),
    "log-normal": lambda a: LogNormal(a.log(), 1.0, validate_args=True),
    "gamma": lambda a: Gamma(torch.ones(()), a, validate_args=True),
    "bernoulli": lambda a: Bernoulli(a, validate_args=True),
    "categorical": lambda a: Categorical(torch.stack([a, 1 - a], -1), validate_args=True),
    "event": lambda a: Independent(Normal(torch.zeros(3), a, validate_args=True), 1),
}


@pytest.mark.parametrize("kind", CHECKED)
@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_the_verdict_is_that_of_the_distribution(kind: str, bad: float) -> None:
    good = torch.tensor([0.2, 0.5, 0.9])
    with NotedChecks() as checks:
        CHECKED[kind](good)
    assert bool(checks.passed())
    wrong = torch.tensor([0.2, bad, 0.9])
    with pytest.raises(ValueError, match="Expected parameter"):
        CHECKED[kind](wrong)
    with NotedChecks() as checks:
        CHECKED[kind](wrong)
        CHECKED[kind](good)
    assert not bool(checks.passed())


def test_no_check_is_passed() -> None:
    with NotedChecks() as checks:
        Normal(0.0, -1.0, validate_args=False)
    assert checks.passed().shape == () and bool(checks.passed())


def test_other_questions_are_answered_as_ever() -> None:
    with NotedChecks() as checks:
        asked = torch._is_all_true(torch.tensor([False]))
        torch.zeros(1)
        assert not torch.tensor([False]).all()
        assert asked.dtype == torch.bool
    assert not bool(checks.passed())
