"""Recorded steps give the bits of the program's, or are not taken."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    HyperNetworkGuide,
    LanczosELBO,
    LinearisedELBO,
    MMNNGuide,
    SemiImplicitELBO,
    fit,
)
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, PerformanceHint
from pyro_implicit.generators import AutoregressiveGenerator, MLPGenerator
from pyro_implicit.objectives.lanczos import MAX_NOISE_DIM_WATCHED
from pyro_implicit.training import RecordedObjective
from pyro_implicit.training.fitting import run
from pyro_implicit.training.why_not_recorded import why_not_recorded

X = torch.linspace(-1.0, 1.0, 12).unsqueeze(-1)
Y = torch.sin(2.0 * X[:, 0])


def regression(x: Tensor, y: Tensor | None = None, noise: float = 0.5) -> Tensor:
    weight = pyro.sample("weight", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, noise))
    bias = pyro.param("bias", torch.tensor(0.1))
    width = pyro.param("width", torch.tensor(2.0), constraint=constraints.positive)
    f = (weight * torch.cat([x, x**2 / width], -1)).sum(-1) + bias
    with pyro.plate("rows", 12, subsample_size=len(x), dim=-1):
        return pyro.sample("y", dist.Normal(f, scale), obs=y)


def linearised(**options: Any) -> LinearisedELBO:
    return LinearisedELBO(3, vectorize_particles=True, max_plate_nesting=1, **options)


def simple(x: Tensor) -> None:
    """One latent of several entries, so that any model of Python around it is short."""
    with pyro.plate("rows", len(x)):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(mean, 0.5), obs=x)


DATA = torch.randn(4, generator=torch.Generator().manual_seed(0))


def small(size: int) -> AutoregressiveGenerator:
    """Recorded in a fraction of the time that the default takes."""
    return AutoregressiveGenerator(size, 4, num_blocks=1, num_steps=1)


def bare(model: Any, **options: Any) -> HyperNetworkGuide:
    return HyperNetworkGuide(model, **({"init_from": None, "generator": small} | options))


def trained(
    objective: Any, model: Any, guide: Any, batches: list[tuple[Any, ...]]
) -> tuple[list[float], dict[str, Tensor], Tensor]:
    pyro.clear_param_store()
    pyro.set_rng_seed(3)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), objective)
    losses = [svi.step(*batch) for batch in batches]
    store = pyro.get_param_store()
    params = {name: store._params[name].detach().clone() for name in store.keys()}
    return losses, params, torch.get_rng_state()


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    assert all(torch.equal(found[1][name], value) for name, value in expected[1].items())
    assert torch.equal(found[2], expected[2])


WHOLE = [(X, Y)] * 30
BATCHES = [(X[:5], Y[:5]), (X[5:10], Y[5:10]), (X[10:], Y[10:])] * 12


@pytest.mark.long
@pytest.mark.parametrize(
    "batches",
    [pytest.param(WHOLE, marks=pytest.mark.slow), BATCHES],  # graphs of two shapes; and of one
    ids=["whole", "batches"],
)
@pytest.mark.parametrize(
    ("objective", "guide"),
    [
        (linearised, lambda: bare(regression)),
        pytest.param(linearised, lambda: bare(regression, factorized=True), marks=pytest.mark.slow),
        pytest.param(
            linearised,
            lambda: copy.deepcopy(bare(regression)).double(),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: linearised(kl_weight=0.5), lambda: bare(regression), marks=pytest.mark.slow
        ),
        pytest.param(
            lambda: linearised(watch_folds=0),
            lambda: bare(regression, generator=lambda m: MLPGenerator(m, m), learn_scale="scalar"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: LanczosELBO(2, vectorize_particles=True, max_plate_nesting=1, watch_folds=0),
            lambda: MMNNGuide(regression, init_from=None),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["default", "factorised", "float64", "weighted", "learned noise", "Lanczos"],
)
def test_the_bits_are_those_of_the_program(
    objective: Callable[[], Any], guide: Callable[[], Any], batches: Any, slow_program: None
) -> None:
    expected = trained(objective(), regression, guide(), batches)
    recorded = RecordedObjective(objective())
    found = trained(recorded, regression, guide(), batches)
    assert_same(found, expected)
    assert recorded.is_recorded and recorded.reason == ""


def lazy(every: int) -> LanczosELBO:
    options: dict[str, Any] = {"max_plate_nesting": 1, "watch_folds": 0, "num_steps": 2}
    return LanczosELBO(2, vectorize_particles=True, entropy_every=every, **options)


@pytest.mark.long
@pytest.mark.parametrize("every", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_steps_with_and_without_an_entropy_are_recorded_each(
    every: int, slow_program: None
) -> None:
    batches = [(DATA,)] * (8 * every + 3)
    program, recorded = lazy(every), RecordedObjective(lazy(every))
    guides = bare(simple), bare(simple)  # a count goes with its guide
    expected = trained(program, simple, guides[0], batches)
    found = trained(recorded, simple, guides[1], batches)
    assert_same(found, expected)
    assert sum(graph.run is not None for graph in recorded._graphs.values()) == 2
    assert recorded.objective.state_dict() == program.state_dict() == {"turns": [len(batches) - 1]}


@pytest.mark.slow
def test_guides_that_are_recorded_in_turns_keep_their_own_turn(slow_program: None) -> None:
    def run(objective: Any) -> tuple[list[float], Any]:
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        guides = [bare(simple), bare(simple)]
        guides[1]._pyro_name = "second"
        optim = pyro.optim.Adam({"lr": 0.01})
        svis = [SVI(simple, guide, optim, objective) for guide in guides]
        for guide in guides:
            guide(DATA)
        order = [0, 1, 1] * 15  # the second guide has its turn in other steps than the first
        losses = [svis[which].step(DATA) for which in order]
        own = getattr(objective, "objective", objective)
        own.load_state_dict({"turns": [4, 3]})  # as a state that is taken up in mid-training
        losses += [svis[which].step(DATA) for which in order]
        return losses, own.state_dict()

    recorded = RecordedObjective(lazy(3))
    expected, found = run(lazy(3)), run(recorded)
    assert found == expected and found[1] == {"turns": [19, 33]}
    assert sum(graph.run is not None for graph in recorded._graphs.values()) == 4


@pytest.mark.long
def test_networks_with_a_mode_are_recorded_for_each(slow_program: None) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    net = BayesianModule(network, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("rows", 12):
            pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    expected = trained(linearised(), model, bare(model), WHOLE)
    recorded = RecordedObjective(linearised())
    assert_same(trained(recorded, model, bare(model), WHOLE), expected)
    assert recorded.is_recorded


@pytest.mark.long
def test_a_setting_that_changes_is_followed(slow_program: None) -> None:
    def losses(objective: Any, inner: Any) -> list[float]:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        svi = SVI(simple, bare(simple), pyro.optim.Adam({"lr": 0.01}), objective)
        found = []
        for step in range(30):
            inner.kl_weight = 1.0 if step < 15 else 0.25
            found.append(svi.step(DATA))
        return found

    plain, wrapped = linearised(), linearised()
    recorded = RecordedObjective(wrapped)
    assert losses(recorded, wrapped) == losses(plain, plain)
    assert recorded.is_recorded


@pytest.mark.long
def test_parameters_that_were_replaced_are_met_again(slow_program: None) -> None:
    recorded = RecordedObjective(linearised())
    first = trained(recorded, simple, bare(simple), [(DATA,)] * 12)
    guide = bare(simple)
    assert_same(trained(recorded, simple, guide, [(DATA,)] * 12), first)
    store = pyro.get_param_store()
    store.set_state(copy.deepcopy(store.get_state()))
    assert np.isfinite(recorded.loss_and_grads(simple, guide, DATA))


@pytest.mark.long
def test_each_model_has_its_own_graph_also_where_another_is_gone(slow_program: None) -> None:
    recorded = RecordedObjective(linearised())
    for scale in (1.0, 2.0, 3.0):

        def model(x: Tensor, scale: float = scale) -> None:
            _scaled(scale)

        expected = trained(linearised(), model, bare(model), [(DATA,)] * 8)
        assert_same(trained(recorded, model, bare(model), [(DATA,)] * 8), expected)
        del model
    assert recorded.is_recorded


@pytest.mark.long
def test_methods_of_an_object_are_recorded_once(slow_program: None) -> None:
    class Holder:
        def model(self, x: Tensor) -> None:
            _scaled(1.5)

    holder, recorded = Holder(), RecordedObjective(linearised())
    guide = bare(holder.model)
    for _ in range(12):
        recorded.loss_and_grads(holder.model, guide, DATA)
    assert recorded.is_recorded


# ---- what cannot be recorded


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> None:
        self.count += 1
        _scaled(1.0 + self.count)


def _scaled(scale: Any) -> None:
    with pyro.plate("rows", len(DATA)):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(mean, scale), obs=DATA)


def _branching(x: Tensor) -> None:
    with pyro.plate("rows", len(DATA)):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(mean, 1.0 if x.sum() > 0 else 2.0), obs=DATA)


def _closure() -> Any:
    calls = [0]

    def model(x: Tensor) -> None:
        calls[0] += 1
        _scaled(1.0 + calls[0] // 1000)

    return model


def _nonlocal() -> Any:
    calls = 0

    def model(x: Tensor) -> None:
        nonlocal calls
        calls += 1
        _scaled(1.0)

    return model


def _drawing(x: Tensor) -> None:
    _scaled(float(np.random.uniform(1.0, 2.0)))


class Normalised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(1, affine=False)

    def forward(self, x: Tensor) -> None:
        _scaled(1.0 + self.norm(x.unsqueeze(-1)).square().mean())


_GLOBAL = {"scale": 1.0, "calls": 0}


def _global(x: Tensor) -> None:
    _GLOBAL["calls"] += 1
    _scaled(_GLOBAL["scale"])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Counting(), "a step changes Counting.count"),
        (_branching, "reads a number from a tensor"),
        (_closure(), "a step changes calls"),
        (_nonlocal(), "a step changes calls"),
        (_drawing, "a step changes the random numbers of NumPy"),
        (Normalised(), "a step changes the buffer Normalised.norm"),
        (_global, "a step changes _GLOBAL"),
    ],
)
def test_programs_that_differ_from_step_to_step_stay_as_they_are(model: Any, reason: str) -> None:
    pyro.set_rng_seed(0)
    recorded = RecordedObjective(linearised())
    svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), recorded)
    with pytest.warns(PerformanceHint, match=f"steps are not recorded.*({reason})"):
        for _ in range(6):
            svi.step(DATA)
    assert not recorded.is_recorded and recorded.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svi.step(DATA)  # it is told once


def test_objectives_whose_steps_differ_are_told_apart() -> None:
    guide = bare(simple)
    guide(DATA)
    folding = bare(simple, generator=lambda m: MLPGenerator(m, 4))
    folding(DATA)
    assert why_not_recorded(linearised(), guide) == ""
    assert "folds" in why_not_recorded(linearised(), folding)
    assert why_not_recorded(linearised(watch_folds=0), folding) == ""
    assert "one after the other" in why_not_recorded(LinearisedELBO(2), guide)
    products = LanczosELBO(2, vectorize_particles=True)  # it looks at few noises alone
    assert "folds" in why_not_recorded(products, folding)
    assert "folds" in why_not_recorded(products, lambda: None)
    many = bare(simple, generator=lambda m: MLPGenerator(MAX_NOISE_DIM_WATCHED + 1, m))
    many(DATA)
    assert why_not_recorded(products, many) == ""
    assert "folds" in why_not_recorded(linearised(), many)
    assert "Trace_ELBO" in why_not_recorded(Trace_ELBO(), guide)


@pytest.mark.parametrize("objective", [LinearisedELBO(2), SemiImplicitELBO(2), None, Trace_ELBO()])
def test_other_objectives_are_refused(objective: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a LinearisedELBO or LanczosELBO"):
        RecordedObjective(objective)


@pytest.mark.long
def test_five_kinds_of_arguments_are_too_many(slow_program: None) -> None:
    recorded = RecordedObjective(linearised())
    batches = [(X[:n], Y[:n]) for n in (2, 3, 4, 5, 6)]
    with pytest.warns(PerformanceHint, match="more than four combinations"):
        found = trained(recorded, regression, bare(regression), batches)
    assert_same(found, trained(linearised(), regression, bare(regression), batches))


WORDS: dict[str, tuple[Any, str]] = {
    "number": (lambda i, svi: 0.1 * (i + 1), r"no tensor has more than four values, 0\.5 the last"),
    "structure": (lambda i, svi: [X[0]] * i, "more than four structures"),
    "setting": (
        lambda i, svi: setattr(svi.loss.__self__.objective, "kl_weight", 1 - i / 10),
        "setti",
    ),
}


@pytest.mark.parametrize("kind", WORDS)
def test_what_changes_too_often_is_named(kind: str) -> None:
    def model(x: Tensor, y: Tensor, extra: Any) -> None:
        regression(x, y)

    change, words = WORDS[kind]
    svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 1e-3}), RecordedObjective(linearised()))
    with pytest.warns(PerformanceHint, match=words):
        for i in range(5):
            svi.step(X, Y, change(i, svi))


@pytest.mark.long
def test_a_recording_that_is_no_faster_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_RELATIVE_STEP_TIME", 0.0)
    recorded = RecordedObjective(linearised())
    with pytest.warns(PerformanceHint, match="takes as long"):
        trained(recorded, simple, bare(simple), [(DATA,)] * 10)


@pytest.mark.long
def test_a_change_from_outside_is_found_at_the_next_comparison(
    slow_program: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_implicit.training.recorded._STEPS_BETWEEN_AUDITS", 5)
    outside = Outside()

    def model(x: Tensor) -> None:
        _scaled(outside())

    recorded = RecordedObjective(linearised())
    svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), recorded)
    for _ in range(10):
        svi.step(DATA)
    assert recorded.is_recorded
    Outside.scale = 3.0
    with pytest.warns(PerformanceHint, match="has changed since it was recorded"):
        for _ in range(6):
            svi.step(DATA)
    Outside.scale = 1.0


class Outside:
    scale = 1.0

    def __call__(self) -> float:
        return float(getattr(Outside, "elacs"[::-1]))  # by a name that no look at the code tells


class Holder:
    """A model that holds what it is trained on, and reads what its class and module say."""

    width = 1.0

    def __init__(self) -> None:
        self.batch, self.parts = DATA, [torch.zeros(())]

    def __call__(self) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(DATA)):
            loc = mean + self.parts[0] + _LEVEL
            pyro.sample("x", dist.Normal(loc, Holder.width), obs=self.batch)


_LEVEL = torch.zeros(())


def _batch(holder: Holder) -> None:
    holder.batch = holder.batch + 1.0


def _entry(holder: Holder) -> None:
    holder.parts[0] = holder.parts[0] - 1.0


def _level(holder: Holder) -> None:
    global _LEVEL
    _LEVEL = _LEVEL + 0.5


def _width(holder: Holder) -> None:
    Holder.width = 1.5


def _in_place(holder: Holder) -> None:
    holder.batch.add_(0.5)


SLOW = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [_batch, _width, _in_place, pytest.param(_entry, marks=SLOW), pytest.param(_level, marks=SLOW)],
)
def test_what_the_model_holds_is_looked_at_before_each_step(
    change: Callable[[Holder], None], slow_program: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for wrap in (RecordedObjective, lambda objective: objective):
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}._LEVEL", torch.zeros(()))
            patch.setattr(Holder, "width", 1.0)
            pyro.set_rng_seed(0)
            holder = Holder()
            holder.batch = DATA.clone()
            objective: Any = wrap(linearised())
            svi = SVI(holder, bare(holder), pyro.optim.Adam({"lr": 0.01}), objective)
            losses = []
            for step in range(25):
                if step in (10, 18):
                    change(holder)
                losses.append(svi.step())
        found.append(losses)
        if isinstance(objective, RecordedObjective):
            assert objective.is_recorded and not objective.has_changed
    assert found[0] == found[1]


@pytest.mark.long
def test_a_parameter_that_is_thawed_is_trained(slow_program: None) -> None:
    found = []
    for wrap in (RecordedObjective, lambda objective: objective):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        net = torch.nn.Linear(1, 1).eval()  # in training mode Pyro warns of frozen parameters
        net.weight.requires_grad_(False)

        def model(x: Tensor, net: torch.nn.Module = net) -> None:
            pyro.module("net", net)
            scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
            with pyro.plate("rows", len(x)):
                pyro.sample("x", dist.Normal(net(x.unsqueeze(-1)).squeeze(-1), scale), obs=2 * x)

        svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), wrap(linearised()))
        begin = net.weight.item()
        losses = []
        for step in range(20):
            net.weight.requires_grad_(step >= 10)
            losses.append(svi.step(DATA))
        assert net.weight.item() != begin
        found.append([*losses, net.weight.item()])
    assert found[0] == found[1]


@pytest.mark.long
def test_the_mode_of_a_network_that_the_model_names_is_followed(slow_program: None) -> None:
    found = []
    net = torch.nn.Dropout(0.5)

    def model(x: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("x", dist.Normal(mean + net(x), 1.0), obs=x)

    for wrap in (RecordedObjective, lambda objective: objective):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), wrap(linearised()))
        losses = []
        for step in range(20):
            net.train(step < 10)
            losses.append(svi.step(DATA))
        found.append(losses)
    assert found[0] == found[1]


@pytest.mark.long
def test_a_model_whose_batch_is_put_into_it_at_each_step_is_the_program(
    slow_program: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_GRAPHS", 1)
    found = []
    for wrap in (RecordedObjective, lambda objective: objective):
        pyro.set_rng_seed(0)
        holder = Holder()
        svi = SVI(holder, bare(holder), pyro.optim.Adam({"lr": 0.01}), wrap(linearised()))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            losses = []
            for _ in range(15):
                _batch(holder)
                losses.append(svi.step())
        found.append(losses)
        told = [str(one.message) for one in told if one.category is PerformanceHint]
        assert len(told) == (wrap is RecordedObjective)
        assert all("Holder.batch changes from step to step" in text for text in told)
    assert found[0] == found[1]


@pytest.mark.long
def test_arguments_that_cannot_be_looked_into_are_not_recorded(slow_program: None) -> None:
    """The text of a long array does not tell it from another."""

    def model(rows: Any) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(rows)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=torch.as_tensor(rows))

    found = []
    for wrap in (lambda objective: RecordedObjective(objective), lambda objective: objective):
        pyro.set_rng_seed(0)
        svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), wrap(linearised()))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            rows = np.zeros(2000, dtype=np.float32)
            losses = []
            for step in range(20):
                rows = rows.copy()
                rows[1000] = step
                losses.append(svi.step(rows))
        found.append((losses, [str(one.message) for one in told]))
    assert found[0][0] == found[1][0] and found[1][1] == []
    assert "an argument is a ndarray: give tensors or numbers" in found[0][1][0]


@pytest.mark.long
def test_a_loss_that_is_not_finite_names_its_site(slow_program: None) -> None:
    data = DATA.clone()
    recorded = RecordedObjective(linearised())
    guide = bare(simple)
    svi = SVI(simple, guide, pyro.optim.Adam({"lr": 0.01}), recorded)
    for _ in range(10):
        svi.step(data)
    data[0] = torch.inf
    with pytest.raises((NonFiniteError, ValueError), match="x"):
        svi.step(data)


@pytest.mark.long
def test_other_handlers_around_a_step_are_obeyed(slow_program: None) -> None:
    recorded, plain = RecordedObjective(linearised()), linearised()
    guide = bare(simple)
    for _ in range(10):
        recorded.loss_and_grads(simple, guide, DATA)
    values = []
    for objective in (recorded, plain):
        pyro.set_rng_seed(0)
        with pyro.poutine.scale(scale=0.1):
            values.append(objective.loss_and_grads(simple, guide, DATA))
    assert values[0] == values[1]


def test_the_rest_is_the_objectives(slow_program: None) -> None:
    plain = linearised()
    recorded, guide = RecordedObjective(plain), bare(simple)
    guide(DATA)
    for name in ("loss", "terms", "differentiable_loss"):
        found = []
        for objective in (recorded, plain):
            pyro.set_rng_seed(0)
            found.append(getattr(objective, name)(simple, guide, DATA))
        assert str(found[0]) == str(found[1])
    assert repr(recorded).startswith("RecordedObjective(LinearisedELBO(")


@pytest.mark.long
def test_fit_records_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for worth in (1, 10**9):
        monkeypatch.setattr(run, "_MIN_STEPS_TO_RECORD", worth)
        pyro.clear_param_store()
        guide = bare(simple)
        result = fit(simple, guide, DATA, seed=0, num_steps=60, progress=False)
        found.append((result.history, guide.state_dict()["_samplers.0.generator.weights"]))
        assert isinstance(result.objective, LinearisedELBO)
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


@pytest.mark.long
def test_fit_tells_of_a_change_from_outside(
    slow_program: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_MIN_STEPS_TO_RECORD", 1)
    monkeypatch.setattr("pyro_implicit.training.recorded._STEPS_BETWEEN_AUDITS", 5)
    outside = Outside()

    def model(x: Tensor) -> None:
        _scaled(outside())

    def validation() -> float:
        Outside.scale = 3.0
        return 0.0

    try:
        result = fit(
            model, bare(model), DATA, validation=validation, num_steps=110, seed=0, progress=False
        )
    finally:
        Outside.scale = 1.0
    assert any("changed between steps from outside" in text for text in result.warnings)


def turned(x: Tensor) -> None:
    """A parameter that is read the other way round, and two with one gradient."""
    table = pyro.param("table", torch.full((2, 3), 0.3))
    shift = sum(pyro.param(name, torch.zeros(3)) for name in ("one", "other"))
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    f = (table.mT.reshape(6) * torch.arange(6.0)).cos().reshape(3, 2).sum(-1) + shift
    with pyro.plate("rows", len(x)):
        pyro.sample("x", dist.Normal(mean + f.sum(), 0.5), obs=x)


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
def test_gradients_lie_as_backward_leaves_them() -> None:
    """A fused step reads them in the order of their parameter, and clipping writes into them."""
    found = []
    for recorded in (True, False):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        objective = linearised()
        step = RecordedObjective(objective) if recorded else objective
        guide = bare(turned).setup(DATA)
        for place in range(12):
            step.loss_and_grads(turned, guide, DATA)
            store = pyro.get_param_store()._params
            params = [store[name] for name in sorted(store)]
            gradients = [param.grad for param in params if param.grad is not None]
            assert len({one.untyped_storage().data_ptr() for one in gradients}) == len(gradients)
            if place == 0:
                adam = torch.optim.Adam(params, lr=0.05, fused=True)
            torch.nn.utils.clip_grad_norm_(params, 0.5)
            adam.step()
            adam.zero_grad()
        assert not recorded or step.is_recorded
        found.append({name: store[name].detach().clone() for name in store})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    assert found[0]["table"].unique().numel() > 4


class Keeper:
    """A model that keeps something between steps."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __call__(self, x: Tensor) -> None:
        _scaled_by(x, self.use(self))


def _scaled_by(x: Tensor, scale: Any) -> None:
    with pyro.plate("rows", len(x)):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(mean * scale, 0.5), obs=x)


def _counted(model: Any) -> float:
    model.count += 1
    return min(1.0, model.count / 20)


def _counts_in_a_tensor(model: Any) -> Tensor:
    model.held.add_(1.0)
    return 1.0 / (1.0 + model.held)


def _another_tensor(model: Any) -> Tensor:
    model.held = model.held + 1.0
    return 1.0 / (1.0 + model.held)


KEPT: dict[str, Callable[[], Keeper]] = {
    "number": lambda: Keeper(use=_counted, count=0),
    "torch": lambda: Keeper(
        use=lambda m: torch.rand(4, generator=m.held), held=torch.Generator().manual_seed(0)
    ),
    "tensor": lambda: Keeper(use=_counts_in_a_tensor, held=torch.zeros(())),
    "another tensor": lambda: Keeper(use=_another_tensor, held=torch.zeros(())),
    "old numpy": lambda: Keeper(
        use=lambda m: 0.5 + float(m.held.random_sample()), held=np.random.RandomState(0)
    ),
    "numpy": lambda: Keeper(
        use=lambda m: 0.5 + float(m.held.random()), held=np.random.default_rng(0)
    ),
    "python": lambda: Keeper(use=lambda m: 0.5 + m.held.random(), held=random.Random(0)),
    "iterator": lambda: Keeper(use=lambda m: next(m.held), held=itertools.cycle([1.0, 2.0, 3.0])),
}


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
@pytest.mark.parametrize("kind", KEPT)
def test_a_program_that_is_refused_is_run_as_often_as_ever(kind: str) -> None:
    """What it counts or draws by itself goes on as if nobody had looked at it."""
    found = []
    for recorded in (True, False):
        model, objective = KEPT[kind](), linearised()
        step: Any = RecordedObjective(objective, hints=False) if recorded else objective
        found.append(trained(step, model, bare(model), [(DATA,)] * 9))
        assert not recorded or (step.reason and not step.is_recorded)
    assert_same(*found)


class Ruled:
    """A model that reads a number of its class."""

    beta = 1.0

    def __call__(self, x: Tensor) -> None:
        _scaled_by(x, self.beta)


_OUTSIDE = 1.0


class Helped:
    """A model that reads a global by a helper's code."""

    def scale(self) -> float:
        return _OUTSIDE

    def model(self, x: Tensor) -> None:
        _scaled_by(x, self.scale())


class Layered(nn.Module):
    """A network of which a layer is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Identity(), nn.Identity())

    def forward(self, x: Tensor) -> None:
        _scaled_by(x, self.layers(x.new_ones(())))


class Owned(PyroModule):
    """A network with settings that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"beta": 1.0}

    def forward(self, x: Tensor) -> None:
        scales = [_OUTSIDE * one for one in (self.settings["beta"], self.settings.get("more", 1.0))]
        _scaled_by(x, scales[0] * scales[1])


class Slotted:
    """A setting without a ``__dict__``."""

    __slots__ = ("beta",)

    def __init__(self) -> None:
        self.beta = 1.0


def _changes_set(model: Any) -> None:
    model.held.add("half")
    model.held.discard("whole")


def _changes_last(model: Any) -> None:
    model.held[-1] = 0.5


def _set_outside(_: Any) -> None:
    globals()["_OUTSIDE"] = 0.5


CHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "entry": (Owned, lambda m: m.settings.update(beta=0.5)),
    "new entry": (Owned, lambda m: m.settings.update(more=0.5)),
    "global": (Owned, _set_outside),
    "class": (Ruled, lambda m: setattr(Ruled, "beta", 0.5)),
    "shadow": (Ruled, lambda m: setattr(m, "beta", 0.5)),
    "helper": (lambda: Helped().model, _set_outside),
    "layer": (Layered, lambda m: m.layers.__setitem__(1, nn.Tanh())),
    "slot": (
        lambda: Keeper(use=lambda m: m.held.beta, held=Slotted()),
        lambda m: setattr(m.held, "beta", 0.5),
    ),
    "set": (
        lambda: Keeper(use=lambda m: 1.0 if "whole" in m.held else 0.5, held={"whole"}),
        _changes_set,
    ),
    "deque": (lambda: Keeper(use=lambda m: m.held[-1], held=deque([1.0])), _changes_last),
    "long list": (lambda: Keeper(use=lambda m: m.held[-1], held=[1.0] * 500), _changes_last),
    "long dictionary": (
        lambda: Keeper(use=lambda m: m.held[400], held=dict.fromkeys(range(500), 1.0)),
        lambda m: m.held.update({400: 0.5}),
    ),
}


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
@pytest.mark.parametrize("kind", CHANGED)
def test_what_is_changed_from_outside_is_followed_wherever_it_is(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, change = CHANGED[kind]
    found = []
    for recorded in (True, False):
        monkeypatch.setitem(globals(), "_OUTSIDE", 1.0)
        monkeypatch.setattr(Ruled, "beta", 1.0)
        model, objective = make(), linearised()
        step: Any = RecordedObjective(objective) if recorded else objective
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), step)
        losses = []
        for place in range(14):
            if place == 10:
                assert not recorded or step.is_recorded
                change(model)
            losses.append(svi.step(DATA))
        found.append(losses)
    assert found[0] == found[1]


@pytest.mark.long
def test_a_hook_on_a_gradient_is_called_in_each_step(slow_program: None) -> None:
    found, called = [], []
    for recorded in (True, False):
        objective = linearised()
        step: Any = RecordedObjective(objective, hints=False) if recorded else objective
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        guide = bare(simple)
        svi = SVI(simple, guide, pyro.optim.Adam({"lr": 0.01}), step)
        losses = [svi.step(DATA) for _ in range(10)]
        (weights,) = [p for p in pyro.get_param_store()._params.values() if p.requires_grad]
        weights.register_hook(lambda gradient: called.append(1) or gradient.clamp(-0.1, 0.1))
        found.append(losses + [svi.step(DATA) for _ in range(5)])
    assert found[0] == found[1] and len(called) == 10


@pytest.mark.long
def test_two_guides_in_turns_give_the_bits_of_the_program(slow_program: None) -> None:
    def run(objective: Any) -> list[float]:
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        models = simple, lambda x: _scaled_by(x, 1.0)
        guides = [bare(model) for model in models]
        guides[1]._pyro_name = "second"
        optim = pyro.optim.Adam({"lr": 0.01})
        svis = [SVI(m, g, optim, objective) for m, g in zip(models, guides, strict=True)]
        return [svis[place % 2].step(DATA) for place in range(18)]

    recorded = RecordedObjective(LinearisedELBO(3, vectorize_particles=True))  # it finds the plates
    assert run(recorded) == run(LinearisedELBO(3, vectorize_particles=True))
    assert sum(graph.run is not None for graph in recorded._graphs.values()) == 2


@pytest.mark.long
@pytest.mark.parametrize("through", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_records_for_itself(through: Callable[[Any], Any], slow_program: None) -> None:
    recorded = RecordedObjective(linearised())
    expected = trained(recorded, simple, bare(simple), [(DATA,)] * 10)
    other = through(recorded)
    assert recorded.is_recorded and not other.is_recorded
    assert_same(trained(other, simple, bare(simple), [(DATA,)] * 10), expected)
    assert other.is_recorded


@pytest.mark.long
def test_an_error_in_a_replayed_step_leaves_the_random_numbers_of_the_program(
    slow_program: None,
) -> None:
    table = torch.tensor([0.5, 1.0, 1.5])

    def model(places: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 4):
            pyro.sample("x", dist.Normal(mean + table[places], 0.5), obs=DATA)

    def run(objective: Any) -> list[float]:
        pyro.clear_param_store()
        pyro.set_rng_seed(3)
        svi = SVI(model, bare(model), pyro.optim.Adam({"lr": 0.01}), objective)
        losses = [svi.step(torch.tensor([0, 1, 2, 0])) for _ in range(9)]
        with pytest.raises(IndexError):
            svi.step(torch.tensor([0, 1, 2, 7]))
        return losses + [svi.step(torch.tensor([0, 1, 2, 0])) for _ in range(3)]

    recorded = RecordedObjective(linearised())
    assert run(recorded) == run(linearised())
    assert recorded.is_recorded


def _reads_a_parameter(x: Tensor) -> None:
    shift = pyro.param("shift", torch.tensor(0.02))
    _scaled_by(x + shift, 2.0 if shift.item() > 0.13 else 1.0)


def _in_pieces(x: Tensor) -> None:
    """Writes into a tensor, and two parameters with one gradient."""
    shift = torch.zeros(4)
    shift[:2] = x[:2]
    shift[2:] = x[2:] * 1.0
    one, other = (pyro.param(name, torch.zeros(4)) for name in ("one", "other"))
    _scaled_by(shift + (one + other), 1.0)


class Foreign:
    """A network that only its own optimiser knows."""

    def __init__(self) -> None:
        self.layer = nn.Linear(1, 1)

    def __call__(self, x: Tensor) -> None:
        _scaled_by(x, self.layer(torch.ones(1)))


def _recurrent() -> Callable[[Tensor], None]:
    lstm = nn.LSTM(1, 3, batch_first=True)

    def model(x: Tensor) -> None:
        pyro.module("lstm", lstm)
        _scaled_by(x, lstm(x[None, :, None])[0].sum())

    return model


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
@pytest.mark.parametrize(
    ("make", "args", "reason"),
    [
        (lambda: _reads_a_parameter, (DATA,), "reads a number from a tensor"),
        (Foreign, (DATA,), "not in Pyro's store"),
        (_recurrent, (DATA,), "RuntimeError"),
        (lambda: simple, (DATA.clone().requires_grad_(True),), "asks for its gradient"),
    ],
    ids=["item", "foreign", "recurrent", "argument"],
)
def test_what_a_graph_would_not_do_is_left_to_the_program(
    make: Any, args: Any, reason: str
) -> None:
    found = []
    for recorded in (True, False):
        torch.manual_seed(0)
        model, objective = make(), linearised()
        step: Any = RecordedObjective(objective, hints=False) if recorded else objective
        found.append(trained(step, model, bare(model), [args] * 8))
        assert not recorded or reason in step.reason
    assert_same(*found)


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
def test_gradients_have_memory_of_their_own_where_a_model_writes_into_tensors() -> None:
    pyro.clear_param_store()
    step, guide = RecordedObjective(linearised()), bare(_in_pieces)
    for _ in range(9):
        step.loss_and_grads(_in_pieces, guide, DATA)
        params = pyro.get_param_store()._params.values()
        places = [p.grad.untyped_storage().data_ptr() for p in params if p.grad is not None]
        assert len(set(places)) == len(places)
        for param in params:
            param.grad = None
    assert step.is_recorded


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
def test_arguments_that_lie_otherwise_have_a_graph_of_their_own() -> None:
    def model(x: Tensor) -> None:
        simple(x.reshape(-1))

    table = DATA.reshape(2, 2)
    found = [
        trained(step, model, bare(model), [(table,)] * 8 + [(table.mT,)] * 8)
        for step in (RecordedObjective(linearised()), linearised())
    ]
    assert_same(*found)


def _counts(x: Tensor) -> None:
    rate = pyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


def _classes(x: Tensor) -> None:
    logit = pyro.sample("logit", dist.Normal(0.0, 1.0))
    logits = torch.stack([logit, -logit, 0 * logit], -1)
    with pyro.plate("rows", len(x)):
        pyro.sample("x", dist.Categorical(logits=logits), obs=x)


def _switches(x: Tensor) -> None:
    logit = pyro.sample("logit", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("x", dist.Bernoulli(logits=logit), obs=x)


@pytest.mark.long
@pytest.mark.usefixtures("slow_program")
@pytest.mark.parametrize(
    ("model", "good", "bad"),
    [
        (_counts, torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.5])),
        (_switches, torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0])),
        (_classes, torch.tensor([1, 0]), torch.tensor([1, 3])),
    ],
    ids=["counts", "switches", "classes"],
)
def test_data_that_a_site_refuses_are_refused_in_replayed_steps(
    model: Any, good: Tensor, bad: Tensor
) -> None:
    with pyro.validation_enabled(True):
        step, guide = RecordedObjective(linearised(), hints=False), bare(model)
        for _ in range(12):
            step.loss_and_grads(model, guide, good.clone())
        assert step.is_recorded
        with pytest.raises(ValueError, match="site 'x'"):
            step.loss_and_grads(model, guide, bad)
        changed = good.clone()
        step.loss_and_grads(model, guide, changed)
        changed.copy_(bad)
        with pytest.raises(ValueError, match="site 'x'"):
            step.loss_and_grads(model, guide, changed)


def attributed(x: Tensor, y: Tensor) -> None:
    """Reads of its arguments what they are beside numbers."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = 2.0 if x is y else getattr(x, "scale", 1.0)
    with pyro.plate("rows", len(x)):
        pyro.sample("x", dist.Normal(mean + y, scale), obs=x)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["attribute", "same tensor"])
def test_what_arguments_are_beside_numbers_is_seen(kind: str, slow_program: None) -> None:
    other = DATA.clone()
    other.scale = 3.0  # type: ignore[attr-defined]
    later = (other, DATA.clone()) if kind == "attribute" else (DATA, DATA)
    batches = [(DATA, DATA.clone())] * 10 + [later] * 8
    recorded = RecordedObjective(linearised())
    with pytest.warns(PerformanceHint, match="gives other numbers"):  # a graph knows numbers alone
        found = trained(recorded, attributed, bare(attributed), batches)
    assert_same(found, trained(linearised(), attributed, bare(attributed), batches))


@pytest.mark.long
def test_a_step_without_gradients_adds_none(slow_program: None) -> None:
    guide = bare(simple)
    recorded = RecordedObjective(linearised())
    trained(recorded, simple, guide, [(DATA,)] * 10)
    assert recorded.is_recorded
    for param in guide.parameters():
        param.grad = None
    with torch.no_grad():
        recorded.loss_and_grads(simple, guide, DATA)
    assert all(param.grad is None for param in guide.parameters())


@pytest.mark.parametrize("scale", [None, 0.5, torch.tensor(0.5)], ids=["none", "number", "tensor"])
def test_latents_of_rows_beside_implicit_ones_are_recorded(scale: Any) -> None:
    """What is compared of their weights at each step is read out of no tensor."""

    def weighed() -> Any:
        return nullcontext() if scale is None else poutine.scale(scale=scale)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", 20, subsample_size=len(x)):
            with weighed():
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + w[..., 0], 1.0), obs=x)

    shared = HyperNetworkGuide(poutine.block(model, hide=["z"]), init_from=None)

    def guide(x: Tensor) -> None:
        shared(x)
        slope = pyro.param("slope", torch.tensor(0.5))
        with pyro.plate("rows", 20, subsample_size=len(x)), weighed():
            pyro.sample("z", dist.Normal(slope * x, 0.5))

    recorded = RecordedObjective(linearised(watch_folds=0))
    for _ in range(4):
        recorded.loss_and_grads(model, guide, torch.linspace(-1.0, 1.0, 8))
    assert recorded.reason == ""
