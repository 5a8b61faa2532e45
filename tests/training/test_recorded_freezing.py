"""Recorded steps train, freeze and leave parameters as the program does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.distributions import constraints
from pyro.infer import SVI
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.generators import AutoregressiveGenerator
from pyro_implicit.training import RecordedObjective
from pyro_implicit.training.fitting import run

pytestmark = pytest.mark.usefixtures("slow_program")

DATA = torch.randn(4, generator=torch.Generator().manual_seed(0))
STEPS = 20
PLAIN = torch.tensor(0.1)


def observed(x: Tensor, mean: Tensor, scale: Tensor | float = 0.5) -> None:
    latent = pyro.sample("latent", dist.Normal(0.0, 1.0))
    trained = pyro.param("always trained", torch.tensor(0.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("x", dist.Normal(latent + trained + mean, scale), obs=2 * x)


def stored(name: str) -> Tensor:
    return pyro.get_param_store()._params[name]


class Own(PyroModule):
    """A model with parameters of each kind that Pyro's modules know."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(0.1))
        self.scale = PyroParam(torch.tensor(0.5), constraint=constraints.positive)
        self.layer = nn.Linear(1, 1).eval()  # in training mode Pyro warns of frozen parameters
        self.level = 1.0

    def forward(self, x: Tensor) -> None:
        mean = self.layer(x.unsqueeze(-1)).squeeze(-1) + self.shift
        observed(x, self.level * mean, self.scale)


def by_name() -> tuple[Any, Callable[[], Tensor]]:
    return lambda x: observed(x, pyro.param("b", torch.tensor(0.1))), partial(stored, "b")


def constrained() -> tuple[Any, Callable[[], Tensor]]:
    def model(x: Tensor) -> None:
        scale = pyro.param("scale", torch.tensor(0.5), constraint=constraints.positive)
        observed(x, PLAIN, scale)

    return model, partial(stored, "scale")


def by_two_names() -> tuple[Any, Callable[[], Tensor]]:
    same = torch.tensor(0.1)

    def model(x: Tensor) -> None:
        observed(x, pyro.param("b", same) + pyro.param("c", same))

    return model, partial(stored, "c")


def in_network() -> tuple[Any, Callable[[], Tensor]]:
    net = nn.Linear(1, 1).eval()

    def model(x: Tensor) -> None:
        observed(x, pyro.module("net", net)(x.unsqueeze(-1)).squeeze(-1))

    return model, lambda: net.weight


def of_guide() -> tuple[Any, Callable[[], Tensor]]:
    def weights() -> Tensor:
        (name,) = (name for name in pyro.get_param_store() if "generator" in name)
        return stored(name)

    return partial(observed, mean=PLAIN), weights


def in_own(read: Callable[[Own], Tensor]) -> tuple[Any, Callable[[], Tensor]]:
    model = Own()
    return model, lambda: read(model)


KINDS: dict[str, Callable[[], tuple[Any, Callable[[], Tensor]]]] = {
    "pyro.param": by_name,
    "constrained": constrained,
    "two names": by_two_names,
    "pyro.module": in_network,
    "guide": of_guide,
    "Parameter of a PyroModule": lambda: in_own(lambda m: m._parameters["shift"]),
    "PyroParam": lambda: in_own(lambda m: m._parameters["scale_unconstrained"]),
    "layer of a PyroModule": lambda: in_own(lambda m: m.layer.bias),
}
OPTIMISERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: pyro.optim.SGD({"lr": 1e-3, "momentum": 0.9}),
    "Adam": lambda: pyro.optim.Adam({"lr": 0.01}),
    "AdamW": lambda: pyro.optim.AdamW({"lr": 0.01, "weight_decay": 0.1}),
    "ClippedAdam": lambda: pyro.optim.ClippedAdam({"lr": 0.01, "lrd": 0.99}),
}


def small(size: int) -> AutoregressiveGenerator:
    """Recorded in a fraction of the time that the default takes."""
    return AutoregressiveGenerator(size, 4, num_blocks=1, num_steps=1)


def linearised() -> LinearisedELBO:
    return LinearisedELBO(3, vectorize_particles=True, max_plate_nesting=1)


def run_of(
    make: Callable[[], Any],
    optimiser: Callable[[], Any],
    change: Callable[[int, Any], None],
    *,
    recorded: bool,
    num_steps: int = STEPS,
) -> tuple[list[Any], Any]:
    """Losses and all parameters after each step, and what took the steps."""
    pyro.clear_param_store()
    pyro.set_rng_seed(3)
    objective: Any = linearised()
    if recorded:
        objective = RecordedObjective(objective, hints=False)
    model, read = make()
    svi = SVI(
        model, HyperNetworkGuide(model, init_from=None, generator=small), optimiser(), objective
    )
    found = []
    for step in range(num_steps):
        if step:  # the first makes parameters
            change(step, read)
        loss = svi.step(DATA)
        params = pyro.get_param_store()._params
        found.append((loss, {name: one.detach().clone() for name, one in params.items()}))
    return found, objective


def assert_same_steps(found: list[Any], expected: list[Any]) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one[0] == other[0], step
        assert one[1].keys() == other[1].keys(), step
        assert all(torch.equal(one[1][name], value) for name, value in other[1].items()), step


def assert_followed(kind: str, optimiser: str, turns: set[int]) -> None:
    """Freezes and frees a parameter in turns."""

    def change(step: int, read: Any) -> None:
        if step in turns:
            read().requires_grad_(not read().requires_grad)

    (found, objective), (expected, _) = (
        run_of(KINDS[kind], OPTIMISERS[optimiser], change, recorded=recorded)
        for recorded in (True, False)
    )
    assert_same_steps(found, expected)
    assert not objective.has_changed
    assert objective.is_recorded or max(turns) > STEPS - 5 or objective.reason


TURNS = [(kind, list(OPTIMISERS)[k % len(OPTIMISERS)]) for k, kind in enumerate(KINDS)]
PAIRS = [(kind, optimiser) for kind in KINDS for optimiser in OPTIMISERS]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "optimiser"),
    [pytest.param(*p, marks=() if p in TURNS else pytest.mark.slow) for p in PAIRS],
)
def test_a_parameter_is_frozen_and_freed_as_in_the_program(kind: str, optimiser: str) -> None:
    assert_followed(kind, optimiser, {1, 8, 16})  # freed after it was recorded, and frozen again


@given(
    kind=st.sampled_from(sorted(KINDS)),
    optimiser=st.sampled_from(sorted(OPTIMISERS)),
    turns=st.sets(st.integers(1, STEPS - 1), min_size=1, max_size=5),
)
@pytest.mark.slow
def test_parameters_are_frozen_and_freed_at_any_step(
    kind: str, optimiser: str, turns: set[int]
) -> None:
    assert_followed(kind, optimiser, turns)


def _loads_by_assignment(step: int, read: Any) -> None:
    ones = {"weight": torch.ones(1, 1), "bias": torch.ones(1)}
    read().load_state_dict(ones, assign=True)


def _other_bias(step: int, read: Any) -> None:
    read().bias = nn.Parameter(torch.ones(1))


def _no_bias(step: int, read: Any) -> None:
    read().bias = None


def _new_bias(step: int, read: Any) -> None:
    read().bias = nn.Parameter(torch.ones(1), requires_grad=False)


def _hidden_bias(step: int, read: Any) -> None:
    read().__dict__["bias"] = torch.ones(1)  # found before the parameter


def in_module(bias: bool = True) -> tuple[Any, Callable[[], Any]]:
    net = nn.Linear(1, 1, bias=bias).eval()

    def model(x: Tensor) -> None:
        observed(x, pyro.module("net", net)(x.unsqueeze(-1)).squeeze(-1))

    return model, lambda: net


def in_updated_module() -> tuple[Any, Callable[[], Any]]:
    """What Pyro's store has goes into the network in each step."""
    net = nn.Linear(1, 1).eval()

    def model(x: Tensor) -> None:
        pyro.module("net", net, update_module_params=True)
        observed(x, net(x.unsqueeze(-1)).squeeze(-1))

    return model, lambda: net


def own() -> tuple[Any, Callable[[], Any]]:
    model = Own()
    return model, lambda: model


class Helped:
    """A model that is an object with a method to help it."""

    def helper(self) -> Tensor:
        return PLAIN

    def __call__(self, x: Tensor) -> None:
        observed(x, self.helper())


def helped() -> tuple[Any, Callable[[], Any]]:
    model = Helped()
    return model, lambda: model


def in_closure() -> tuple[Any, Callable[[], Tensor]]:
    """A tensor that is no parameter of Pyro."""
    held = torch.tensor(0.1)
    return lambda x: observed(x, held), lambda: held


REPLACED: dict[str, tuple[Callable[[], Any], Callable[[int, Any], None]]] = {
    "load_state_dict(assign=True)": (in_module, _loads_by_assignment),
    "another parameter": (in_module, _other_bias),
    "no parameter any more": (in_module, _no_bias),
    "a parameter where none was": (partial(in_module, bias=False), _new_bias),
    "hidden by an attribute": (in_module, _hidden_bias),
    "taken from the store": (in_updated_module, _loads_by_assignment),
    "assigned to a layer of a PyroModule": (
        own,
        lambda i, read: _other_bias(i, lambda: read().layer),
    ),
    "a number for a PyroParam": (own, lambda i, read: setattr(read(), "scale", 0.1)),
    "a tensor for a PyroParam": (own, lambda i, read: setattr(read(), "scale", torch.tensor(0.1))),
    "another PyroParam": (
        own,
        lambda i, read: setattr(
            read(), "scale", PyroParam(torch.tensor(0.1), constraint=constraints.positive)
        ),
    ),
    "another Parameter of a PyroModule": (
        own,
        lambda i, read: setattr(read(), "shift", nn.Parameter(torch.tensor(1.0))),
    ),
    "a method of an object": (helped, lambda i, read: setattr(read(), "helper", lambda: 2 * PLAIN)),
    "in the store": (by_name, lambda i, read: pyro.get_param_store().__setitem__("b", 2 * PLAIN)),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", REPLACED)
def test_what_is_replaced_is_the_programs_at_once(kind: str) -> None:
    make, change = REPLACED[kind]

    def at_nine(step: int, read: Any) -> None:
        if step == 9:
            change(step, read)

    (found, objective), (expected, _) = (
        run_of(make, OPTIMISERS["Adam"], at_nine, recorded=recorded, num_steps=12)
        for recorded in (True, False)
    )
    assert_same_steps(found, expected)
    assert not objective.has_changed


@pytest.mark.long
@pytest.mark.parametrize("kind", ["closure", "argument"])
def test_what_asks_for_its_gradient_later_gets_it(kind: str) -> None:
    gradients = []
    for recorded in (True, False):
        objective: Any = linearised()
        step = RecordedObjective(objective, hints=False) if recorded else objective
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        model, read = in_closure()
        data = DATA.clone()
        svi = SVI(model, HyperNetworkGuide(model, init_from=None, generator=small), adam(), step)
        for _ in range(8):
            svi.step(data)
        assert not recorded or step.is_recorded
        asks = read() if kind == "closure" else data
        asks.requires_grad_(True)
        for _ in range(3):
            svi.step(data)
        assert asks.grad is not None
        gradients.append(asks.grad)
    assert torch.equal(*gradients)


def adam() -> Any:
    return OPTIMISERS["Adam"]()


@pytest.mark.long
def test_fit_trains_what_its_validation_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_implicit.training.fitting.run.STEPS_BETWEEN_SCORES", 10)
    model, read = by_name()
    found = []
    for worth in (1, 10**9):
        monkeypatch.setattr(run, "_MIN_STEPS_TO_RECORD", worth)
        pyro.clear_param_store()
        pyro.param("b", PLAIN.clone())
        read().requires_grad_(False)

        def validation(scores: Iterator[float] = itertools.count(1.0)) -> float:  # noqa: B008
            read().requires_grad_(True)
            return next(scores)  # each better than the last: parameters are those of the end

        guide = HyperNetworkGuide(model, init_from=None, generator=small)
        result = fit(
            model, guide, DATA, validation=validation, num_steps=25, seed=0, progress=False
        )
        found.append((result.history, read().item()))
    assert found[0] == found[1] and found[0][1] != PLAIN.item()


class Deep:
    """One thing in another."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


@pytest.mark.long
def test_a_parameter_that_is_freed_out_of_sight_is_found_by_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``pyro.module`` tells of it from then on: that it is none of the recording's is seen."""
    monkeypatch.setattr("pyro_implicit.training.recorded._STEPS_BETWEEN_AUDITS", 5)
    net = nn.Linear(1, 1).eval()
    net.bias.requires_grad_(False)
    held = [Deep(None)] * 200 + [Deep(net)]  # longer than what is looked into

    def model(x: Tensor) -> None:
        hidden = held[-1].inner
        mean = pyro.module("net", hidden)(x.unsqueeze(-1)).squeeze(-1)
        observed(x, mean)

    step = RecordedObjective(linearised())
    guide = HyperNetworkGuide(model, init_from=None, generator=small)
    svi = SVI(model, guide, adam(), step)
    for _ in range(9):
        svi.step(DATA)
    assert step.is_recorded
    net.bias.requires_grad_(True)
    with pytest.warns(PerformanceHint, match="has changed since it was recorded"):
        for _ in range(6):
            svi.step(DATA)
    begin = net.bias.item()
    svi.step(DATA)
    assert net.bias.item() != begin


@pytest.mark.long
def test_what_is_frozen_and_freed_all_the_time_stays_the_program() -> None:
    def change(step: int, read: Any) -> None:
        read().requires_grad_(step % 2 == 0)

    found, objective = run_of(by_name, OPTIMISERS["Adam"], change, recorded=True)
    expected, _ = run_of(by_name, OPTIMISERS["Adam"], change, recorded=False)
    assert_same_steps(found, expected)
    assert objective.reason == "b.requires_grad changes from step to step"


@pytest.mark.long
@pytest.mark.parametrize("apart", [7, 13])
def test_changes_far_from_each_other_are_recorded_each(
    apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"_STEPS_BETWEEN_AUDITS": 3, "_STEPS_THAT_PAY_FOR_RECORDING": 10, "_MAX_GRAPHS": 1}
    for name, value in limits.items():
        monkeypatch.setattr(f"pyro_implicit.training.recorded.{name}", value)

    def change(step: int, read: Any) -> None:
        if step % apart == 0:
            read().requires_grad_(not read().requires_grad)

    _, objective = run_of(by_name, adam, change, recorded=True, num_steps=3 * apart)
    assert objective.is_recorded == (apart == 13)
    assert objective.reason == ("" if apart == 13 else "b.requires_grad changes from step to step")


@pytest.mark.long
def test_a_change_counts_once_whatever_the_number_of_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_GRAPHS", 2)
    pyro.set_rng_seed(3)
    model, read = by_name()
    step = RecordedObjective(linearised())
    svi = SVI(model, HyperNetworkGuide(model, init_from=None, generator=small), adam(), step)
    for turn in range(3):
        if turn:
            read().requires_grad_(not read().requires_grad)
        for _ in range(5):
            svi.step(DATA)
            svi.step(DATA[:2])
    assert step.is_recorded and len(step._graphs) == 2
