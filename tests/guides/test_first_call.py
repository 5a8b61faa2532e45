"""What a guide knows of the call it was built with outlasts saving, and is used as before."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.diagnostics import khat, stein_discrepancy
from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.first_call import FIRST_CALL_KEY, FirstCall
from pyro_implicit.inference.prior_from import prior_from
from pyro_implicit.saving import load_state, save_state

X, Y = torch.randn(6, 2), torch.randn(6)
SAMPLES: dict[str, Any] = {"num_samples": 3}
CALLS = {
    "evaluate": evaluate,
    "predict": lambda model, guide, x, y, **more: predict(model, guide, x, **more),
    "log_predictive_density": log_predictive_density,
    "to_arviz": to_arviz,
}


def _loaded(guide: Any, path: Path) -> Any:
    save_state(guide.state_dict(), path / "guide.pt")
    return HyperNetworkGuide.from_state_dict(load_state(path / "guide.pt"))


def _silent(call: Any, *args: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(*args, **SAMPLES)


def columns(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)


def levels(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", len(x)):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level, 0.1), obs=y)


def holds(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=Y)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_one_column_in_place_of_several_is_told(call: str, saved: bool, tmp_path: Path) -> None:
    guide = HyperNetworkGuide(columns, init_from=None).setup(X, Y)
    guide = _loaded(guide, tmp_path) if saved else guide
    _silent(CALLS[call], columns, guide, X, Y)
    _silent(CALLS[call], columns, guide, X[:4], Y[:4])
    with pytest.warns(UserWarning, match=r"argument 0 has shape \(6, 1\), and had 2 in its last"):
        CALLS[call](columns, guide, X[:, :1], Y, **SAMPLES)


def test_several_columns_in_place_of_one_are_told() -> None:
    guide = HyperNetworkGuide(columns, init_from=None).setup(X[:, :1], Y)
    with pytest.warns(UserWarning, match=r"shape \(6, 2\), and had 1 in its last"):
        predict(columns, guide, X, **SAMPLES)


def test_sequences_have_any_length_and_small_arguments_any_shape() -> None:
    def series(x: Tensor, table: Tensor, y: Tensor | None = None) -> None:
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(level + x.mean(-1) + table.sum(), 1.0), obs=y)

    guide = HyperNetworkGuide(series, init_from=None).setup(torch.randn(6, 5), torch.ones(2, 3), Y)
    _silent(predict, series, guide, torch.randn(4, 7), torch.ones(2, 1))


@pytest.mark.parametrize("call", CALLS)
def test_other_rows_are_told_after_loading(call: str, tmp_path: Path) -> None:
    guide = _loaded(HyperNetworkGuide(levels, init_from=None).setup(X, Y), tmp_path)
    _silent(CALLS[call], levels, guide, X, Y)
    with pytest.warns(UserWarning, match=r"a value of \['level'\] for each of the 6 rows"):
        CALLS[call](levels, guide, X + 1, Y, **SAMPLES)


def test_a_lost_dimension_is_told_after_loading(tmp_path: Path) -> None:
    guide = _loaded(HyperNetworkGuide(columns, init_from=None).setup(X, Y), tmp_path)
    with pytest.warns(UserWarning, match=r"shape \(2,\), and had 2 dimensions .* x\[None\]"):
        predict(columns, guide, X[0], **SAMPLES)


def test_held_observations_are_told_after_loading(tmp_path: Path) -> None:
    guide = _loaded(HyperNetworkGuide(holds, init_from=None).setup(X, Y), tmp_path)
    with pytest.warns(UserWarning, match=r"\['y'\] observes the same values"):
        evaluate(holds, guide, X + 1, Y + 1, **SAMPLES)


def test_a_prior_of_a_loaded_guide_knows_its_rows(tmp_path: Path) -> None:
    guide = _loaded(HyperNetworkGuide(levels, init_from=None).setup(X, Y), tmp_path)
    prior = prior_from(guide, num_samples=100)
    with pytest.warns(UserWarning, match="each of the 6 rows that its guide was built with"):
        prior(levels)(X + 1, Y)


def test_a_state_without_what_is_known_loads_as_before() -> None:
    guide = HyperNetworkGuide(levels, init_from=None).setup(X, Y)
    state = dict(guide.state_dict())
    del state["_extra_state"][FIRST_CALL_KEY]
    old = HyperNetworkGuide.from_state_dict(state)
    _silent(predict, levels, old, X + 1)
    guide.load_state_dict(state)  # keeps what it knows itself
    with pytest.warns(UserWarning, match="other ones"):
        predict(levels, guide, X + 1, **SAMPLES)


def test_a_built_guide_knows_the_rows_of_the_state_that_it_has_loaded() -> None:
    first, second = (HyperNetworkGuide(levels, init_from=None).setup(X + i, Y) for i in (0, 1))
    second.load_state_dict(first.state_dict())
    _silent(predict, levels, second, X)
    state = dict(first.state_dict()) | {"_samplers.0.preconditioner.loc": torch.zeros(2)}
    third = HyperNetworkGuide(levels, init_from=None).setup(X + 2, Y)
    with pytest.raises(StateError):
        third.load_state_dict(state)
    _silent(predict, levels, third, X + 2)


def test_no_datum_is_in_the_state() -> None:
    known = HyperNetworkGuide(columns, init_from=None).setup(X, Y).get_extra_state()[FIRST_CALL_KEY]
    numbers = {round(n, 6) for one in known["arguments"] for n in one}
    assert not numbers & {round(n, 6) for n in [*X.flatten().tolist(), *Y.tolist()]}
    assert known["shapes"] == [[6, 2], [6]] and known["rows"][0] == 6
    assert FirstCall.from_state(known).to_state() == known


@pytest.mark.parametrize(
    "change", [{"shapes": [[2, -1]]}, {"shapes": ["x"]}, {"rows": [1.0]}, {"observed": {"y": "x"}}]
)
def test_a_changed_state_is_refused(change: dict[str, Any]) -> None:
    known = HyperNetworkGuide(columns, init_from=None).setup(X, Y).get_extra_state()[FIRST_CALL_KEY]
    with pytest.raises(StateError):
        FirstCall.from_state(known | change)


def scaled(x: Tensor, y: Tensor | None = None) -> None:
    c = pyro.param("c", torch.tensor(0.5), constraint=dist.constraints.positive)
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, 0], c), obs=y)


@pytest.fixture
def fitted() -> Iterator[Any]:
    guide = HyperNetworkGuide(scaled, init_from=None).setup(X, Y)
    pyro.get_param_store()["c"] = torch.tensor(3.0)
    yield guide


LOST = r"parameters \['c'\] have the values that they begin with.*get_param_store\(\)\.save"


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
def test_a_lost_parameter_is_told_in_every_call(call: str, fitted: Any, tmp_path: Path) -> None:
    _silent(CALLS[call], scaled, fitted, X, Y)
    guide = _loaded(fitted, tmp_path)
    _silent(CALLS[call], scaled, guide, X, Y)  # it is there
    pyro.clear_param_store()
    again = _loaded(guide, tmp_path)  # whose state is written without it
    for _ in range(2):
        with pytest.warns(UserWarning, match=LOST):
            CALLS[call](scaled, again, X, Y, **SAMPLES)
    pyro.get_param_store()["c"] = torch.tensor(4.0)  # trained on
    _silent(CALLS[call], scaled, again, X, Y)


FEW: dict[str, Any] = {"num_chains": 2, "num_steps": 0, "progress": False}
#: those that go on from a guide
CHECKS: dict[str, Any] = {
    "khat": lambda guide: khat(scaled, guide, X, Y, num_samples=100, num_inner=5, tolerance=99.0),
    "stein_discrepancy": lambda guide: stein_discrepancy(scaled, guide, X, Y, num_samples=9),
    "refine": lambda guide: refine(scaled, guide, X, Y, kernel="hmc", **FEW),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CHECKS)
def test_a_lost_parameter_is_told_by_checks(name: str, fitted: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CHECKS[name](fitted)
    guide = _loaded(fitted, tmp_path)
    pyro.clear_param_store()
    with pytest.warns(UserWarning, match=LOST) as told:
        CHECKS[name](guide)
    assert [Path(one.filename).name for one in told] == [Path(__file__).name]


@pytest.mark.long
@pytest.mark.parametrize("objective", [None, LinearisedELBO()])
def test_a_lost_parameter_is_told_where_a_fit_goes_on(
    objective: Any, fitted: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"objective": objective, "num_steps": 3, "progress": False, "seed": 0}
    known = fit(scaled, fitted, X, Y, **options)
    assert not re.search(LOST, "".join(known.warnings))
    guide = _loaded(fitted, tmp_path)
    pyro.clear_param_store()
    assert re.search(LOST, "".join(fit(scaled, guide, X, Y, **options).warnings))


@pytest.mark.long
def test_parameters_of_a_later_fit_are_not_those_of_the_state_before() -> None:
    """A network keeps its weights when Pyro's store is cleared."""
    net = nn.Linear(2, 1)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("net", net)
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w + net(x)[:, 0], 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    guide.load_state_dict(guide.state_dict())
    fit(model, guide, X, Y, num_steps=5, progress=False, seed=0)
    pyro.clear_param_store()
    _silent(CALLS["predict"], model, guide, X, Y)


@pytest.mark.long
def test_a_lost_parameter_is_told_where_a_fit_is_resumed(fitted: Any) -> None:
    first = fit(scaled, fitted, X, Y, num_steps=3, progress=False, seed=0)
    pyro.clear_param_store()
    more = fit(scaled, fitted, X, Y, num_steps=5, progress=False, resume=first)
    assert re.search(LOST, "".join(more.warnings))


def test_a_parameter_that_the_state_never_saw_is_told(fitted: Any) -> None:
    pyro.clear_param_store()
    with pytest.warns(UserWarning, match=LOST):
        predict(scaled, fitted, X, **SAMPLES)


def test_a_loaded_store_gives_it_back(fitted: Any, tmp_path: Path) -> None:
    pyro.get_param_store().save(str(tmp_path / "parameters.pt"))
    guide = _loaded(fitted, tmp_path)
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "parameters.pt"))
    _silent(evaluate, scaled, guide, X, Y)
    assert float(pyro.param("c").detach()) == pytest.approx(3.0)


def _network() -> tuple[Any, Any]:
    layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    net = BayesianModule(layers, prior={r"2\..*": dist.Normal(0.0, 1.0)}, name="net")

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    return net, model


def test_a_network_that_was_not_loaded_is_told_and_one_that_was_is_not(tmp_path: Path) -> None:
    net, model = _network()
    fitted = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    guide = _loaded(fitted, tmp_path)
    other, fresh = _network()
    other.load_state_dict(net.state_dict())
    pyro.clear_param_store()
    _silent(predict, fresh, guide, X)
    _, fresh = _network()
    pyro.clear_param_store()
    with pytest.warns(UserWarning, match=r"\['net.0.weight', 'net.0.bias'\]|'net.0.bias'"):
        predict(fresh, guide, X, **SAMPLES)


def test_a_network_of_this_process_keeps_its_values() -> None:
    _, model = _network()
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    pyro.clear_param_store()
    _silent(predict, model, guide, X)


def test_names_of_arguments_are_those_of_the_model_that_a_state_was_loaded_for() -> None:
    def first(a: Tensor, b: Tensor | None = None) -> None:
        columns(a, b)

    guide = HyperNetworkGuide(first, init_from=None).setup(X, Y)
    loaded = HyperNetworkGuide(columns, init_from=None)
    loaded.load_state_dict(guide.state_dict())
    assert loaded.first_call is not None and loaded.first_call.names == ["x", "y"]
    alone = HyperNetworkGuide.from_state_dict(loaded.state_dict())
    assert alone.first_call is not None and alone.first_call.names == ["x", "y"]
