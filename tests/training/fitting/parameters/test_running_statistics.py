"""Running statistics go back with the parameters that they belong to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, fit, log_predictive_density
from pyro_implicit.training.fitting.parameters.running_statistics import RunningStatistics

NUM_ROWS = 40


def data(seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(NUM_ROWS, 3, generator=random) + 2
    return x, x[:, 0].sin() + 0.1 * torch.randn(NUM_ROWS, generator=random)


def network(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 20), nn.BatchNorm1d(20, momentum=momentum), nn.Tanh(), nn.Linear(20, 1)
    )


def model_with(net: nn.Module) -> Callable[..., None]:
    """A function, so that nobody knows of the network before a step calls it."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("net", net)
        w = pyro.sample("w", dist.Normal(1.0, 1.0))
        s = pyro.sample("s", dist.LogNormal(-1.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(net(x)[:, 0] * w, s), obs=y)

    return model


def state_of(*modules: nn.Module) -> list[Tensor]:
    return [v.clone() for m in modules for v in m.state_dict().values()]


@pytest.mark.long
def test_the_best_network_of_a_validation_has_its_statistics() -> None:
    net = network()
    model, held_out = model_with(net), data(1)
    guide = AutoNormal(model)
    result = fit(
        model, guide, *data(0), validation=held_out, num_steps=1500, lr=0.02, seed=0, progress=False
    )
    assert max(result.scores, key=lambda step: result.scores[step]) < result.num_steps
    now = log_predictive_density(model, guide, *held_out, num_samples=50, seed=0).mean()
    assert float(now) == pytest.approx(max(result.scores.values()), abs=1e-5)


@pytest.mark.long
def in_turns() -> tuple[list[nn.Sequential], Callable[..., None], list[Any]]:
    """A batch for each of two networks."""
    networks = [nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)) for _ in range(2)]

    def model(x: Tensor, task: int, y: Tensor) -> None:
        network = pyro.module(f"network {task}", networks[task])
        w = pyro.sample("w", dist.Normal(1.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(network(x)[:, 0] * w, 1.0), obs=y)

    x = torch.randn(8, 2)
    return networks, model, [(x, 0, x[:, 0]), (3.0 + x, 1, x[:, 1])]


def test_networks_that_a_later_batch_calls_first_are_met_too() -> None:
    networks, model, batches = in_turns()
    seen: list[list[Tensor]] = []

    def score() -> float:
        seen.append([value for one in networks for value in state_of(one)])
        return 1.0 if len(seen) == 3 else 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guide = AutoNormal(model)
        given: Any = {"batches": batches, "validation": score, "num_steps": 900}
        result = fit(model, guide, progress=False, **given)
    assert len(seen) > 3 and list(result.scores.values())[2] == 1.0
    for now, best in zip(state_of(*networks), seen[2], strict=True):
        assert torch.equal(now, best)


def test_a_resumed_run_tells_that_those_in_turns_were_lost() -> None:
    _, model, batches = in_turns()
    scores = [0]

    def score() -> float:
        scores[0] += 1
        return -float(scores[0])

    given: Any = {"batches": batches, "validation": score, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guide = AutoNormal(model)
        first = fit(model, guide, num_steps=20, seed=0, **given)
        result = fit(model, guide, num_steps=40, resume=first, **given)
    assert not any("call in turns" in told for told in first.warnings)
    assert any("call in turns" in told for told in result.warnings)


def test_a_run_that_ends_above_its_start_gives_the_whole_start_back() -> None:
    net = network()
    model = model_with(net)
    guide = AutoNormal(model)
    fit(model, guide, *data(0), num_steps=600, lr=0.01, seed=0, progress=False)
    before = state_of(net, guide)
    result = fit(model, guide, *data(0), num_steps=420, lr=0.5, seed=0, progress=False)
    assert any("what it began as" in told for told in result.warnings)
    for one, other in zip(before, state_of(net, guide), strict=True):
        assert torch.equal(one, other)


def test_looks_at_terms_move_nothing() -> None:
    net = network(momentum=None)
    model = model_with(net)
    guide = HyperNetworkGuide(model)
    result = fit(model, guide, *data(0), num_steps=200, seed=0, progress=False)
    assert len(result.terms) == 4
    assert 100 < int(net[1].num_batches_tracked) <= 200  # type: ignore[arg-type]


def test_a_step_that_is_broken_off_leaves_no_statistics() -> None:
    stopped, whole = network(momentum=None), network(momentum=None)
    result = None
    for at in (None, 30):
        net = whole if at is None else stopped
        model, calls = model_with(net), [0]

        def counted(*args: Any, model: Any = model, calls: Any = calls, at: Any = at) -> None:
            model(*args)
            calls[0] += 1
            if calls[0] == at:
                raise KeyboardInterrupt

        pyro.clear_param_store()
        torch.manual_seed(0)
        guide = AutoNormal(model)
        guide(*data(0))
        options: Any = {"num_steps": 60, "seed": 0, "progress": False}
        result = fit(counted, guide, *data(0), **options)
        if at is not None:
            assert result.reason == "interrupted"
            fit(counted, guide, *data(0), **(options | {"seed": None}), resume=result)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, stopped.state_dict()[name]), name


def test_who_interrupts_between_steps_takes_nothing_back() -> None:
    net = network(momentum=None)
    model = model_with(net)
    guide = AutoNormal(model)

    seen: list[int] = []

    def score() -> float:
        seen.append(int(net[1].num_batches_tracked))  # type: ignore[arg-type]
        if len(seen) == 3:
            raise KeyboardInterrupt
        return 0.0

    options: Any = {"num_steps": 400, "seed": 0, "progress": False, "validation": score}
    result = fit(model, guide, *data(0), **options)
    assert result.reason == "interrupted"
    assert int(net[1].num_batches_tracked) == seen[-1]  # type: ignore[arg-type]


class Counter(nn.Module):
    """Replaces its buffer, rather than writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("constant", torch.ones(2))
        self.register_buffer("nothing", None)

    def forward(self) -> None:
        self.count = self.count + 1


def test_those_that_move_are_found_in_the_first_step_and_undone_in_each() -> None:
    counter, statistics = Counter(), RunningStatistics()
    for _ in range(3):
        with statistics.around_step():
            counter()
            counter()
        assert [int(v) for v in statistics.values.values()] == [int(counter.count)]
        assert [int(v) for v in statistics.before.values()] == [int(counter.count) - 2]
    statistics.undo()
    statistics.undo()
    assert int(counter.count) == 4
    statistics.commit()
    counter()
    statistics.undo()
    assert int(counter.count) == 5


class Last(nn.Module):
    """Keeps what it has seen last, of any shape, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor | None) -> None:
        self.seen = x


def test_a_buffer_of_another_shape_is_no_statistic() -> None:
    last, statistics = Last(), RunningStatistics()
    with statistics.around_step():
        last(torch.ones(3))
    assert len(statistics.values) == 1
    for other in (torch.ones(4), None, torch.full((3,), 2.0)):
        with statistics.around_step():
            last(other)
        statistics.undo()
    assert torch.equal(last.seen, torch.full((3,), 2.0))  # nothing was kept of one before
    last, statistics = Last(), RunningStatistics()
    with statistics.around_step():
        last(torch.ones(4))
    assert statistics.values == {} == statistics.before


def test_a_first_step_that_fails_is_undone_too() -> None:
    counter, statistics = Counter(), RunningStatistics()
    with pytest.raises(ValueError, match="on purpose"), statistics.around_step():
        counter()
        raise ValueError("on purpose")
    statistics.undo()
    assert int(counter.count) == 0


def test_networks_in_evaluation_mode_are_left_alone() -> None:
    counter, statistics = Counter().eval(), RunningStatistics()
    with statistics.around_step():
        counter()
    assert statistics.values == {}


def test_a_network_of_each_call_is_not_kept() -> None:
    statistics, stays = RunningStatistics(), nn.BatchNorm1d(2)
    for _ in range(5):
        with statistics.around_step():
            nn.BatchNorm1d(2)(torch.randn(4, 2))
            stays(torch.randn(4, 2))
        assert len(statistics.values) == len(statistics.before) == 3  # of the one that stays
        assert not statistics.come_in_turns


def test_statistics_without_a_shape_are_met_once_they_have_one() -> None:
    statistics, lazy = RunningStatistics(), nn.Sequential(nn.LazyBatchNorm1d())
    for count in (1, 3, 3):  # the first call gives it one; a number of batches it has before
        with statistics.around_step():
            lazy(torch.randn(4, 2))
        assert len(statistics.values) == count
    before = {name: value.clone() for name, value in statistics.before.items()}
    statistics.undo()
    assert all(torch.equal(value, before[name]) for name, value in statistics.values.items())
