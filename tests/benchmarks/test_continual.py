"""Tasks one after the other: the drifting curve, what is carried on, and the tables."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.posterior import continual as benchmark
from benchmarks.posterior._continual_learner import METHODS, Learner
from benchmarks.posterior._continual_problems import PROBLEMS, Problem
from pyro_implicit.guides.initialization import auto


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts that are good enough for what is looked at here."""
    for name in ("_MODE_STEPS", "_MEAN_FIELD_STEPS", "_MEAN_FIELD_STEPS_LARGE"):
        monkeypatch.setattr(auto, name, 30)
    monkeypatch.setattr(auto, "_UPHILL_STEPS", 5)
    monkeypatch.setattr(auto, "_NUM_BOUND_DRAWS", 8)


SHORT = {"steps": 2, "mean_field_steps": 2, "draws": 3, "coreset": 4}


def _problem(seed: int = 0, **others: Any) -> tuple[Problem, dict[str, Any]]:
    settings = benchmark.settings_of("drift") | others
    return PROBLEMS["drift"](Namespace(), seed, settings), settings


def test_windows_follow_one_another_and_show_one_curve() -> None:
    problem, settings = _problem(noise=1e-6)
    assert len(problem.tasks) == settings["windows"]
    for number, task in enumerate(problem.tasks):
        low = number - settings["windows"] / 2
        for (x, y), size in ((task.train, "rows"), (task.test, "test_rows")):
            assert x.shape == (settings[size], 1) and y.shape == (settings[size],)
            assert low <= x.min() and x.max() <= low + 1
    x, y = (torch.cat(part) for part in zip(*(task.train for task in problem.tasks), strict=True))
    order = x[:, 0].argsort()
    jumps = y[order].diff().abs()
    assert jumps.max() < 10 * x[order, 0].diff().max()  # smooth, over the borders too


@pytest.mark.long
def test_curves_are_drawn_by_the_seed_and_have_deviation_one() -> None:
    pooled = torch.cat([task.test[1] for s in range(100) for task in _problem(s)[0].tasks])
    assert float(pooled.square().mean()) == pytest.approx(1.01, abs=0.15)
    again, other = _problem(3)[0], _problem(4)[0]
    assert torch.equal(again.tasks[0].train[1], _problem(3)[0].tasks[0].train[1])
    assert not torch.equal(again.tasks[0].train[1], other.tasks[0].train[1])


def test_scores_of_a_regression() -> None:
    problem, settings = _problem()
    y = torch.tensor([0.0, 1.0])
    normal = torch.distributions.Normal(0.0, settings["noise"])
    exact = problem.judge(y.expand(5, 2), y)
    assert exact["rmses"] == 0
    assert exact["log_densities"] == pytest.approx(float(normal.log_prob(torch.tensor(0.0))))
    half = problem.judge(torch.stack([y, y + 9.0]), y)  # one draw of two is right
    assert half["rmses"] == pytest.approx(4.5)
    assert half["log_densities"] == pytest.approx(exact["log_densities"] - 0.6931, abs=1e-3)


def _learned(method: str) -> Learner:
    problem, settings = _problem(own_start=False)  # which has a test of its own
    with fixed_seed(0):
        learner = Learner(method, problem, settings | SHORT)
        for number, task in enumerate(problem.tasks[:2]):
            learner.learn(task.train, [other.train for other in problem.tasks[:number]])
        scores = learner.scores(problem.tasks[0].test)
    assert set(scores) == {"rmses", "log_densities"}
    return learner


@pytest.mark.long
@pytest.mark.parametrize("method", ["no update", "all data"])
def test_nothing_is_carried_on(method: str) -> None:
    learner = _learned(method)
    assert learner.prior is None and not learner.priors and not learner.coreset


@pytest.mark.long
def test_the_guides_own_start_is_wider_than_a_narrow_one() -> None:
    spreads = []
    for is_own in (False, True):
        problem, settings = _problem(own_start=is_own)
        with fixed_seed(0):
            learner = Learner("implicit, itself", problem, settings | SHORT | {"draws": 100})
            learner.learn(problem.tasks[0].train, [])
            weights = torch.cat([v.reshape(100, -1) for v in learner.draws().values()], -1)
            spreads.append(float(weights.std(0).mean()))
    assert 0 < 3 * spreads[0] < spreads[1]


@pytest.mark.long
@pytest.mark.parametrize("method", ["mean field", "implicit, diagonal", "implicit, low rank"])
def test_moments_are_carried_on(method: str) -> None:
    learner = _learned(method)
    assert learner.prior is not None and not learner.priors
    assert (learner.prior.factor is not None) == (method == "implicit, low rank")


@pytest.mark.long
def test_a_guide_is_carried_on_whole() -> None:
    learner = _learned("implicit, itself")
    assert len(learner.priors) == 1 and learner.prior is None
    assert set(learner.draws()) == {name for name, _ in learner.network.named_parameters()}


@pytest.mark.long
@pytest.mark.parametrize("method", [name for name in METHODS if name.endswith("coreset")])
def test_rows_of_a_coreset_are_kept(method: str) -> None:
    learner = _learned(method)
    kept: list[Tensor] = [x for x, _ in learner.coreset]
    firsts = [task.train[0][: SHORT["coreset"]] for task in learner.problem.tasks[:2]]
    assert all(torch.equal(a, b) for a, b in zip(kept, firsts, strict=True))
    assert learner.prior is not None


def test_table() -> None:
    first = {"data": "drift", "method": "mean field", "seed": 0, "task": 0, "cpu_seconds": 1.0}
    first |= {"log_densities": [0.8, -9.0], "rmses": [0.1, 2.0]}
    second = first | {"task": 1, "log_densities": [0.2, 0.6], "rmses": [0.3, 0.1]}
    lines = benchmark.table([first, second]).splitlines()
    cells = [cell.strip() for cell in lines[2][1:-1].split("|")]
    assert cells == ["mean field", "0.40", "0.40", "0.70", "0.60", "0.200", "0.200", "1.0"]


def test_tables_of_classes_and_of_regressions_stand_by_themselves() -> None:
    row = {"method": "mean field", "seed": 0, "task": 0, "cpu_seconds": 1.0}
    row |= {"log_densities": [-0.5, -0.7]}
    classes = row | {"accuracies": [0.9, 0.5]}
    both = benchmark.table([classes, row | {"rmses": [0.1, 2.0]}])
    first, second = both.split("\n\n")
    assert first == benchmark.table([classes])
    cells = [cell.strip() for cell in first.splitlines()[2][1:-1].split("|")]
    assert cells == ["mean field", "70.0%", "70.0%", "90.0%", "", "-0.600", "1.0"]
    assert "RMSE" in second


def test_own_settings_of_a_problem_win() -> None:
    shared, own = benchmark.settings_of("digits"), benchmark.settings_of("drift")
    assert shared["hidden"] == benchmark.SETTINGS["hidden"]
    assert own["hidden"] == benchmark.SETTINGS["drift_hidden"]
    assert own["draws"] == benchmark.SETTINGS["draws"]
