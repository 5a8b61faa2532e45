"""What ``poutine.condition`` holds stays: parameters, and data that forecasts start from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.contrib.autoname import scope
from pyro.infer import config_enumerate
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.exceptions import ShapeError, SiteError

N = 40  # more than the rows of a first look
X = torch.linspace(-1.0, 1.0, N)
HELD = 0.01


def line(x: Tensor, y: Any = None) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.LogNormal(3.0, 0.1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(slope * x, scale), obs=y)


def _guide(model: Any, *args: Any) -> HyperNetworkGuide:
    pyro.clear_param_store()
    return HyperNetworkGuide(model, init_from=None, init_scale=1e-6).setup(*args)


def _trace(name: str, value: Any) -> Any:
    trace = poutine.Trace()
    trace.add_node(name, type="sample", value=value, is_observed=False)
    return trace


def _scoped(data: dict[str, Any]) -> Callable[..., Any]:
    def model(x: Tensor, y: Any = None) -> None:
        with poutine.condition(data=data):
            line(x, y)

    return model


HOLDERS = {
    "around": lambda value: poutine.condition(line, data={"scale": value}),
    "by a trace": lambda value: poutine.condition(line, data=_trace("scale", value)),
    "within": lambda value: _scoped({"scale": value}),
    "in a scope": lambda value: scope(poutine.condition(line, data={"scale": value}), prefix="p"),
    "scaled": lambda value: poutine.scale(poutine.condition(line, data={"scale": value}), scale=2),
}


@pytest.mark.long
@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("number", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 32}, {"parallel": True}, {"num_samples": 400}]
)
def test_a_parameter(how: str, number: bool, options: dict[str, Any]) -> None:
    model = HOLDERS[how](HELD if number else torch.tensor(HELD))
    guide = _guide(model, X, X)
    draws = predict(model, guide, X, **({"num_samples": 20} | options), seed=0)
    (name,) = draws
    assert name in ("y", "p/y")
    draws = {"y": draws[name]}
    assert 0.5 * HELD < float(draws["y"].std(0).mean()) < 2 * HELD


def test_its_value_can_be_asked_for() -> None:
    model = HOLDERS["around"](torch.tensor(HELD))
    draws = predict(model, _guide(model, X, X), X, num_samples=3, sites=["scale", "y"])
    assert draws["scale"].tolist() == pytest.approx([HELD] * 3)


@pytest.mark.long
def test_a_parameter_is_no_datum() -> None:
    model = HOLDERS["around"](torch.tensor(HELD))
    guide = _guide(model, X, X)
    slope = guide.sample(1)["slope"].flatten()[0]
    expected = dist.Normal(slope * X, HELD).log_prob(X).detach()
    found = log_predictive_density(model, guide, X, X, num_samples=3)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0.1)
    scores = evaluate(model, guide, X, X, num_samples=3)
    assert "scale" not in str(scores) and f"{N} data of y" in str(scores)
    data = to_arviz(model, guide, X, X, num_samples=20)
    assert set(data["log_likelihood"].data_vars) == {"y"}
    assert set(data["observed_data"].data_vars) == {"y"}
    assert set(data["posterior_predictive"].data_vars) == {"y"}
    assert float(data["posterior_predictive"]["y"].std("draw").mean()) < 2 * HELD


def test_values_of_rows_are_cut_with_them() -> None:
    def model(x: Tensor, y: Any = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1e-3))
        with pyro.plate("rows", len(x)):
            offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(slope * x + offset, 1e-3), obs=y)

    offset = torch.arange(float(N))
    held = poutine.condition(model, data={"offset": offset})
    guide = _guide(held, X, offset)
    options: dict[str, Any]
    for options in ({}, {"batch_size": 32}, {"parallel": True}):
        draws = predict(held, guide, X, num_samples=3, **options)["y"]
        torch.testing.assert_close(draws, offset.expand(3, N), rtol=0, atol=0.1)


@pytest.mark.long
def test_data_that_are_held_are_drawn_anew() -> None:
    """A model conditioned on its data, and on a parameter, has nothing else to predict."""
    data = {"scale": torch.tensor(HELD), "y": X + 100.0}
    model = poutine.condition(line, data=data)
    guide = _guide(model, X)
    for options in ({}, {"batch_size": 32}, {"parallel": True}, {"num_samples": 400}):
        draws = predict(model, guide, X, **({"num_samples": 20} | options))
        assert set(draws) == {"y"} and float(draws["y"].std(0).mean()) > 0.5 * HELD
        assert float(draws["y"].mean()) < 50.0
    assert log_predictive_density(model, guide, X, num_samples=2).shape == (N,)
    assert f"{N} data of y" in str(evaluate(model, guide, X, num_samples=3))
    exported = to_arviz(model, guide, X, num_samples=10)
    assert set(exported["log_likelihood"].data_vars) == {"y"}
    assert float(exported["posterior_predictive"]["y"].mean()) < 50.0


def series(y: Tensor, ahead: int = 0) -> None:
    phi = pyro.sample("phi", dist.Normal(1.0, 1e-4))
    last = torch.tensor(5.0)
    for t in range(len(y) + ahead):
        here = y[t] if t < len(y) else None
        last = pyro.sample(f"y{t}", dist.Normal(phi * last, 0.01), obs=here)


@pytest.mark.long
def test_a_forecast_starts_from_what_is_held() -> None:
    y = torch.linspace(5.0, 9.0, 5)
    guide = _guide(series, y)
    model = poutine.condition(series, data={f"y{t}": y[t] for t in range(5)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = predict(model, guide, y, ahead=2, num_samples=50)
    assert set(draws) == {"y5", "y6"}
    assert float(draws["y6"].mean()) == pytest.approx(9.0, abs=0.05)
    with pytest.warns(UserWarning, match=r"drawn anew too: to predict what follows .* hold them"):
        draws = predict(series, guide, y, ahead=2, num_samples=50)
    assert float(draws["y6"].mean()) == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize("how", [poutine.condition, poutine.do])
def test_a_choice_for_all_data_that_is_held(how: Any) -> None:
    @config_enumerate
    def model(y: Any = None) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1e-3))
        choice = pyro.sample("choice", dist.Bernoulli(0.5))
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Normal(mean + choice * 3.0, 0.1), obs=y)

    guide = _guide(model, torch.full((3,), 3.0))
    held = how(model, data={"choice": torch.tensor(1.0)})
    draws = predict(held, guide, num_samples=50)["y"]
    assert draws.mean(0).tolist() == pytest.approx([3.0] * 3, abs=0.1)


def test_what_the_guide_draws_too_is_told() -> None:
    held = poutine.condition(line, data={"scale": torch.tensor(HELD)})
    guide = _guide(line, X, X)
    with pytest.warns(UserWarning, match=r"\['scale'\] are held by poutine.condition, and the gu"):
        draws = predict(held, guide, X, num_samples=20)["y"]
    assert float(draws.std(0).mean()) > 5.0
    for use in (evaluate, log_predictive_density, to_arviz):
        with pytest.warns(UserWarning, match=r"write poutine.do\(model, data=\{'scale': value\}"):
            use(held, guide, X, X, num_samples=3)
    done = poutine.do(line, data={"scale": torch.tensor(HELD)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = predict(done, guide, X, num_samples=20)["y"]
    assert float(draws.std(0).mean()) < 2 * HELD


def test_a_tensor_that_is_held_may_be_observed_elsewhere() -> None:
    value = torch.tensor(3.0)

    def model(y: Any = None) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean + level, 0.1), obs=y)

    held = poutine.condition(model, data={"level": value})
    guide = _guide(held, value)
    assert set(predict(held, guide, value, num_samples=3)) == {"y"}
    assert log_predictive_density(held, guide, value, num_samples=2).shape == (1,)


@pytest.mark.long
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("options", [{}, {"batch_size": 32}, {"parallel": True}])
def test_a_forecast_from_more_rows_than_a_first_look_has(
    ahead: int, options: dict[str, Any]
) -> None:
    """The first 32 rows are all held, and what is to be predicted comes after them."""
    y = torch.full((40,), 100.0)
    guide = _guide(series, y)
    model = poutine.condition(series, data={f"y{t}": y[t] for t in range(40)})
    draws = predict(model, guide, y, ahead=ahead, num_samples=5, **options)
    assert set(draws) == {f"y{40 + t}" for t in range(ahead)}
    assert float(draws["y40"].mean()) == pytest.approx(100.0, abs=0.2)


def test_rows_of_which_the_last_are_not_held() -> None:
    def model(x: Tensor, y: Any = None) -> None:
        level = pyro.sample("level", dist.Normal(0.0, 1e-3))
        with pyro.plate("past", 40):
            past = pyro.sample("past_y", dist.Normal(level, 1.0))
        with pyro.plate("future", len(x) - 40):
            pyro.sample("y", dist.Normal(past.mean(), 0.1), obs=y)

    x = torch.zeros(50)
    held = poutine.condition(model, data={"past_y": torch.full((40,), 1000.0)})
    guide = _guide(held, x, torch.zeros(10))
    draws = predict(held, guide, x, num_samples=5)
    assert set(draws) == {"y"} and float(draws["y"].mean()) == pytest.approx(1000.0, abs=1.0)
    assert f"{10} data of y" in str(evaluate(held, guide, x, torch.zeros(10), num_samples=2))


def test_numbers_are_held_in_every_call() -> None:
    model = HOLDERS["around"](HELD)
    guide = _guide(HOLDERS["around"](torch.tensor(HELD)), X, X)
    for options in ({}, {"parallel": True}):
        draws = predict(model, guide, X, num_samples=3, **options)["y"]
        assert float(draws.std(0).mean()) < 2 * HELD
    assert log_predictive_density(model, guide, X, X, num_samples=2).shape == (N,)
    assert set(to_arviz(model, guide, X, X, num_samples=2)["log_likelihood"].data_vars) == {"y"}


def test_data_that_are_held_are_drawn_for_other_rows() -> None:
    model = poutine.condition(line, data={"y": X, "scale": torch.tensor(HELD)})
    guide = _guide(model, X)
    assert predict(model, guide, torch.zeros(25), num_samples=3)["y"].shape == (3, 25)


def test_a_vector_that_is_held_is_no_datum_of_the_fit() -> None:
    def model(x: Tensor, y: Any = None) -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(shift + w[..., :1] * x + w[..., 1:], 1.0), obs=y)

    held = poutine.condition(model, data={"w": torch.tensor([1.0, 2.0])})
    guide = _guide(held, X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for score in (evaluate, log_predictive_density):
            score(held, guide, X + 1.0, X + 3.0, num_samples=2)
        to_arviz(held, guide, X + 1.0, X + 3.0, num_samples=2)
    with pytest.warns(UserWarning, match=r"does not draw \['w'\]"):
        evaluate(model, guide, X + 1.0, X + 3.0, num_samples=2)


def test_a_site_that_is_replaced_is_not_missed() -> None:
    done = poutine.do(line, data={"scale": torch.tensor(HELD)})
    guide = _guide(poutine.block(line, hide=["scale"]), X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(done, guide, X, X, num_samples=2)
        log_predictive_density(done, guide, X, X, num_samples=2)


def test_data_by_condition_of_a_mixture_are_exported() -> None:
    @config_enumerate
    def model(x: Tensor) -> None:
        means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 9.0]), 1e-3).to_event(1))
        with pyro.plate("rows", len(x)):
            choice = pyro.sample("choice", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(Vindex(means)[..., choice.long()], 0.1))

    held = poutine.condition(model, data={"y": X})
    data = to_arviz(held, _guide(held, X), X, num_samples=3)
    assert set(data["log_likelihood"].data_vars) == {"y"}
    assert set(data["observed_data"].data_vars) == {"y"}


@pytest.mark.long
def test_what_was_taken_for_data_is_told_where_others_might_be() -> None:
    def model(x: Tensor) -> None:
        pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 4):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(level[torch.arange(len(x)) % 4], 1.0))

    def event(x: Tensor) -> None:
        pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 4):
            pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(torch.zeros(len(x)), 1.0).to_event(1))

    data = {"level": torch.zeros(4), "y": X}
    for program, expected in (
        (model, r"\['level', 'y'\] were taken"),
        (event, r"\['level'\] were"),
    ):
        held = poutine.condition(program, data=data)
        guide = _guide(held, X)
        for use in (predict, evaluate, log_predictive_density, to_arviz):
            with pytest.warns(UserWarning, match=expected):
                use(held, guide, X, num_samples=2)


def test_rows_that_the_guide_draws_are_no_data_of_others() -> None:
    """Data without a plate are data still, beside rows that the guide draws instead."""

    def model(x: Tensor) -> None:
        with pyro.plate("groups", 4):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level.mean() + torch.zeros(len(x)), 1.0).to_event(1))

    guide = _guide(poutine.condition(model, data={"y": X}), X)
    held = poutine.condition(model, data={"y": X, "level": torch.zeros(4)})
    with pytest.warns(UserWarning, match=r"\['level'\] are held by poutine.condition, and the gu"):
        assert set(predict(held, guide, X, num_samples=2)) == {"y"}
        assert log_predictive_density(held, guide, X, num_samples=2).shape == (1,)
        exported = to_arviz(held, guide, X, num_samples=2)
    assert set(exported["log_likelihood"].data_vars) == {"y"}


def test_what_is_held_is_found_by_its_name() -> None:
    """However many are: a search through all of them at each site took seconds of long series."""

    class Counted(dict[str, Tensor]):
        walks = 0

        def __iter__(self) -> Any:
            self.walks += 1
            return super().__iter__()

        def items(self) -> Any:
            self.walks += 1
            return super().items()

    y = torch.full((40,), 5.0)
    data = Counted({f"y{t}": y[t] for t in range(40)})
    guide = _guide(series, y)
    predict(poutine.condition(series, data=data), guide, y, ahead=1, num_samples=3)
    assert data.walks < 40


def named(x: Tensor, rows: Tensor, y: Any = None) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1e-3))
    with pyro.plate("rows", N, subsample=rows):
        offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(slope * x + offset, 0.01), obs=y)


OFFSET = torch.arange(float(N))
ORDERS = {
    "all": torch.arange(N),
    "the first": torch.arange(35),
    "some": torch.randperm(N, generator=torch.Generator().manual_seed(0))[:35],
    "all but one": torch.randperm(N, generator=torch.Generator().manual_seed(1))[1:],
}


def _row_guides(held: Any) -> dict[str, Any]:
    """Guides whose own draws are, and are not, in the order of the rows' numbers."""

    def own(x: Tensor, rows: Tensor, y: Any = None) -> None:
        pyro.sample("slope", dist.Normal(0.0, 1e-3))

    return {"own": own, "ours": _guide(held, OFFSET, torch.arange(N), OFFSET)}


@pytest.mark.long
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", ["own", "ours"])
def test_values_of_rows_are_found_by_number(which: str, order: str) -> None:
    """Whatever the guide, and in every call, so that densities of held values are those of y."""
    held, rows = poutine.condition(named, data={"offset": OFFSET}), ORDERS[order]
    guide, x, y = _row_guides(held)[which], torch.zeros(len(rows)), OFFSET[rows]
    for options in ({}, {"batch_size": 32}, {"parallel": True}):
        draws = predict(held, guide, x, rows, num_samples=3, **options)["y"]
        torch.testing.assert_close(draws, y.expand(3, -1), rtol=0, atol=0.1)
    expected = -math.log(0.01 * math.sqrt(2.0 * math.pi))
    found = log_predictive_density(held, guide, x, rows, y, num_samples=2)
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=0, atol=1e-3)
    for size in (None, 32):
        score = evaluate(held, guide, x, rows, y, num_samples=2, batch_size=size).log_density
        assert float(score.value) == pytest.approx(expected, abs=1e-3)
        data = to_arviz(held, guide, x, rows, y, num_samples=2, batch_size=size)
        likelihood = torch.tensor(data["log_likelihood"]["y"].to_numpy())
        torch.testing.assert_close(likelihood, torch.full_like(likelihood, expected))
        again = torch.tensor(data["posterior_predictive"]["y"].to_numpy())[0]
        torch.testing.assert_close(again, y.expand(2, -1).to(again), rtol=0, atol=0.1)


@pytest.mark.parametrize("which", ["own", "ours"])
def test_all_rows_in_another_order_are_refused(which: str) -> None:
    held, rows = poutine.condition(named, data={"offset": OFFSET}), torch.arange(N).flip(0)
    guide, y = _row_guides(held)[which], OFFSET[rows]
    for use in (evaluate, log_predictive_density, to_arviz, predict):
        for options in ({}, {"batch_size": 32}) if use is not log_predictive_density else ({},):
            with pytest.raises(ShapeError, match=r"\['offset'\] are held .* in another order than"):
                use(held, guide, torch.zeros(N), rows, y, num_samples=2, **options)


def test_data_in_another_order_are_those_of_the_arguments() -> None:
    """Data that are given by condition are for these rows, in whatever order, as with obs=y."""

    def model(x: Tensor, rows: Tensor) -> None:
        level = pyro.sample("level", dist.Normal(0.0, 1e-3))
        with pyro.plate("rows", N, subsample=rows):
            pyro.sample("y", dist.Normal(level + x, 0.01))

    rows = torch.arange(N).flip(0)
    held = poutine.condition(model, data={"y": OFFSET[rows]})
    guide = _guide(held, OFFSET[rows], rows)
    expected = -math.log(0.01 * math.sqrt(2.0 * math.pi))
    found = log_predictive_density(held, guide, OFFSET[rows], rows, num_samples=2)
    torch.testing.assert_close(found, torch.full_like(found, expected), rtol=0, atol=0.1)
    score = evaluate(held, guide, OFFSET[rows], rows, num_samples=2).log_density
    assert float(score.value) == pytest.approx(expected, abs=0.1)
    data = to_arviz(held, guide, OFFSET[rows], rows, num_samples=2)
    assert float(data["log_likelihood"]["y"].mean()) == pytest.approx(expected, abs=0.1)
    draws = predict(held, guide, OFFSET[rows], rows, num_samples=2)["y"]
    torch.testing.assert_close(draws, OFFSET[rows].expand(2, -1), rtol=0, atol=0.1)


def test_rows_that_are_not_named_are_cut_with_the_arguments() -> None:
    def model(x: Tensor, y: Any = None) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1e-3))
        with pyro.plate("rows", len(x)):
            offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(slope * x + offset, 0.01), obs=y)

    held = poutine.condition(model, data={"offset": OFFSET})
    guide = _guide(held, X, OFFSET)
    data = to_arviz(held, guide, X, OFFSET, num_samples=2, batch_size=7)
    assert float(data["log_likelihood"]["y"].mean()) > 2.0
    assert evaluate(held, guide, X, OFFSET, num_samples=2, batch_size=32).log_density.value > 2.0


def _scaled_series(y: Tensor) -> None:
    phi = pyro.sample("phi", dist.Normal(1.0, 1e-4))
    scale = pyro.sample("scale", dist.LogNormal(3.0, 1.0))
    last = torch.tensor(5.0)
    for t in range(len(y)):
        last = pyro.sample(f"y{t}", dist.Normal(phi * last, scale))


def _local(y: Tensor) -> None:
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        offset = pyro.sample("offset", dist.Normal(level, 1.0))
        pyro.sample("y", dist.Normal(offset, 0.1))


def _two_outcomes(y: Tensor) -> None:
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("height", dist.Normal(level, 1.0))
        pyro.sample("weight", dist.Normal(level, 0.1))


def _steps(y: Tensor) -> None:
    last = pyro.sample("level", dist.Normal(0.0, 1.0))
    for t in range(len(y)):
        last = pyro.sample(f"y{t}", dist.Normal(last, 1.0))


UNLIKE = {
    "a parameter of a series": (
        _scaled_series,
        {"scale": HELD},
        r"\['scale', 'y0', .* more\]",
    ),
    "a latent of rows": (_local, {"offset": X}, r"\['offset', 'y'\] were taken"),
}
ALIKE = {
    "two outcomes": (_two_outcomes, {"height": X, "weight": X}),
    "a series": (_steps, {f"y{t}": X[t] for t in range(N)}),
}


@pytest.mark.parametrize("use", [predict, evaluate, log_predictive_density, to_arviz])
@pytest.mark.parametrize("case", UNLIKE)
def test_a_parameter_beside_data_by_condition_is_told(case: str, use: Any) -> None:
    """All of them are taken for data, in one plate or in none, though some are others' parents."""
    model, data, expected = UNLIKE[case]
    data = data | ({"y": X} if model is _local else {f"y{t}": X[t] for t in range(N)})
    held = poutine.condition(model, data={k: torch.as_tensor(v) for k, v in data.items()})
    guide = _guide(held, X)
    with pytest.warns(UserWarning, match=expected):
        use(held, guide, X, num_samples=2)


@pytest.mark.parametrize("use", [predict, evaluate, log_predictive_density, to_arviz])
@pytest.mark.parametrize("case", ALIKE)
def test_outcomes_and_steps_of_a_series_are_no_parameters(case: str, use: Any) -> None:
    model, data = ALIKE[case]
    held = poutine.condition(model, data=data)
    guide = _guide(held, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(held, guide, X, num_samples=2)


@pytest.mark.parametrize("use", [predict, evaluate, log_predictive_density, to_arviz])
@pytest.mark.parametrize("how", [poutine.condition, poutine.do])
def test_what_is_held_around_a_call_is_refused(how: Any, use: Any) -> None:
    """The guide would be held too: w at 5 in the context was at 1 with condition(model)."""
    guide = _guide(line, X, X)
    match = (
        rf"{use.__name__} was called within `with poutine.{how.__name__}\(data=...\):`, .*'slope'"
    )
    with how(data={"slope": torch.tensor(5.0)}), pytest.raises(SiteError, match=match):
        use(line, guide, X, X, num_samples=2)


@pytest.mark.parametrize("use", [predict, evaluate, log_predictive_density, to_arviz])
def test_what_draws_observations_around_a_call_is_refused(use: Any) -> None:
    guide = _guide(line, X, X)
    match = rf"{use.__name__} was called within `with poutine.uncondition\(\):`"
    with poutine.uncondition(), pytest.raises(SiteError, match=match):
        use(line, guide, X, X, num_samples=2)


def _steps_of(y: Tensor) -> None:
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.1))
    last = torch.tensor(0.0)
    for t in range(len(y)):
        last = pyro.sample(f"y{t}", dist.Normal(last, scale))


@pytest.mark.long
@pytest.mark.parametrize(("missing", "is_told"), [("y5", True), ("y39", False)])
def test_what_comes_before_what_is_held_is_told(missing: str, is_told: bool) -> None:
    """A step that is missing is drawn from the one before it; the next one tells of it, too."""
    everything = {f"y{t}": torch.tensor(float(t)) for t in range(N)}
    guide = _guide(poutine.condition(_steps_of, data=everything), X)
    held = poutine.condition(_steps_of, data={k: v for k, v in everything.items() if k != missing})
    for use in (predict, to_arviz):
        if is_told:
            with pytest.warns(UserWarning, match=r"\['y5'\] are drawn before values that poutine"):
                use(held, guide, X, num_samples=2)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                use(held, guide, X, num_samples=2)


@pytest.mark.parametrize("options", [{}, {"batch_size": 32}, {"parallel": True}])
def test_a_latent_that_no_guide_draws_above_values_of_rows_is_told(options: Any) -> None:
    def model(x: Tensor, y: Any = None) -> None:
        pyro.sample("shift", dist.Normal(0.0, 1.0))
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            offset = pyro.sample("offset", dist.Normal(level, 1.0))
            pyro.sample("y", dist.Normal(offset, 1.0), obs=y)

    held = poutine.condition(model, data={"offset": X})
    guide = _guide(poutine.block(held, hide=["level"]), X, X)
    with pytest.warns(UserWarning, match=r"\['level'\] are drawn before .* know nothing of what"):
        predict(held, guide, X, num_samples=2, **options)
