"""Latents that came from their prior unasked are told, and what is to be predicted is not."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from torch import Tensor

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.chains import Chains
from pyro_implicit.exceptions import SiteError, StateError
from pyro_implicit.handlers.looks.upstream import upstream_sites
from pyro_implicit.training.fitting.checks.left_out import warning_of_left_out

X, Y = torch.linspace(0.0, 1.0, 5), torch.zeros(5)


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def with_bias(x, y=None):
    w, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wb")
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x + b, 1.0), obs=y)


def with_levels(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        level = pyro.sample("level", dist.Normal(w, 1.0))
        pyro.sample("y", dist.Normal(level, 1.0), obs=y)


def series(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    last = torch.tensor(0.0)
    for t in range(3):
        last = pyro.sample(f"y_{t}", dist.Normal(w * last, 1.0), obs=None if y is None else y[t])


def function(*_, **__):
    pyro.sample("w", dist.Normal(0.0, 1.0))


def fitted(kind, model=line, *data):
    guide = kind(model, init_from=None) if kind is HyperNetworkGuide else kind(model)
    guide(*data or (X, Y))
    return guide


def of_parts(model):
    both = AutoGuideList(model)
    both.append(AutoNormal(model))
    return both


KINDS = [HyperNetworkGuide, AutoNormal, of_parts, None]


def guide_of(kind, model=line):
    return function if kind is None else fitted(kind, model)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_latent_that_the_guide_leaves_out_is_told(kind, parallel):
    options = {"num_samples": 2, "parallel": parallel}
    for data in [(X, Y)] if kind is None else [(X,), (X, Y)]:
        with pytest.warns(
            UserWarning, match=r"guide does not draw \['b'\], which .* prior"
        ) as told:
            predict(with_bias, guide_of(kind), *data, **options)
        assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"guide does not draw \['level'\]"):
        predict(with_levels, guide_of(kind), X, Y, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_to_be_predicted_is_not(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(line, guide_of(kind), X, num_samples=2)
        predict(series, guide_of(kind, series), X, num_samples=2)
        predict(with_bias, guide_of(kind), X, num_samples=2, sites=["b", "y"])  # asked for by name


def test_levels_without_data_are_told_by_a_guide_that_knows_its_model():
    guide = fitted(HyperNetworkGuide, poutine.block(with_levels, hide=["level"]))
    with pytest.warns(UserWarning, match=r"guide does not draw \['level'\]"):
        predict(with_levels, guide, X, num_samples=2)


def test_names_that_the_model_does_not_have_are_told_too():
    def renamed(x):
        w = pyro.sample("v", dist.Normal(0.0, 1.0))
        with poutine.block(hide=["w"]):
            line(x)
        pyro.sample("u", dist.Normal(w, 1.0))

    def both(*_):
        pyro.sample("u", dist.Normal(0.0, 1.0))
        pyro.sample("q", dist.Normal(0.0, 1.0))

    with pytest.warns(UserWarning, match=r"draw \['v'\].*The guide draws \['q'\], which the model"):
        predict(renamed, both, X, num_samples=2)


def test_the_predictive_density_tells_them_too():
    with pytest.warns(UserWarning, match=r"guide does not draw \['b'\]") as told:
        log_predictive_density(with_bias, function, X, Y, num_samples=2)
    assert told[0].filename == __file__


def test_upstream_sites():
    found = upstream_sites(with_bias, (X,), {}, {"w": torch.tensor(1.0)})
    assert found == {"w": frozenset(), "b": frozenset(), "y": {"w", "b"}}

    def opaque():
        raise ValueError

    assert upstream_sites(opaque, (), {}, {}) is None


def _joint(x: Tensor, y: Tensor | None = None) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(m, 1.0), obs=x)
        pyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def test_an_outcome_that_is_left_out_beside_another_observation_is_predicted() -> None:
    """Inputs that are modelled too; the guide was built with the outcomes."""
    x = torch.randn(6)
    guide = HyperNetworkGuide(_joint, init_from=None).setup(x, x)
    assert predict(_joint, guide, x, num_samples=3)["y"].shape == (3, 6)
    evaluate(_joint, guide, x, num_samples=3)
    log_predictive_density(_joint, guide, x, num_samples=3)


def test_a_latent_that_the_guide_forgets_is_told_beside_it() -> None:
    x = torch.randn(6)
    guide = HyperNetworkGuide(poutine.block(_joint, hide=["b"]), init_from=None).setup(x, x)
    for call in (predict, evaluate, log_predictive_density):
        with pytest.warns(UserWarning, match=r"does not draw \['b'\]"):
            call(_joint, guide, x, num_samples=3)


LEVELS = torch.linspace(0.0, 1.0, 40)


def _state_space(y: Tensor, ahead: int = 0, future: Tensor | None = None) -> None:
    q = pyro.sample("q", dist.LogNormal(0.0, 1.0))
    with pyro.plate("time", len(y)):
        e = pyro.sample("e", dist.Normal(0.0, 1.0))
    level = (q * e).cumsum(-1)
    with pyro.plate("times", len(y)):
        pyro.sample("y", dist.Normal(level, 0.1), obs=y)
    if ahead:
        with pyro.plate("ahead", ahead):
            more = pyro.sample("more", dist.Normal(0.0, 1.0))
        with pyro.plate("times ahead", ahead):
            mean = level[..., -1:] + (q * more).cumsum(-1)
            pyro.sample("later", dist.Normal(mean, 0.1), obs=future)


def _guide(kind: Any) -> Any:
    if kind is refine:
        start = {"q": torch.ones(2), "e": torch.zeros(2, 40)}
        return refine(_state_space, start, LEVELS, num_chains=2, num_steps=0, progress=False)
    if kind in (EnsembleGuide, poutine.block):
        guide = fitted(HyperNetworkGuide, _state_space, LEVELS)
        return (
            poutine.block(guide, hide=[]) if kind is poutine.block else EnsembleGuide([guide] * 2)
        )
    return fitted(kind, _state_space, LEVELS)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [HyperNetworkGuide, AutoNormal, refine, EnsembleGuide, poutine.block]
)
def test_what_is_new_in_a_forecast_is_not_forgotten(kind: Any) -> None:
    guide, future = _guide(kind), torch.ones(3)
    is_looked_at = kind is not poutine.block
    count = 4000 if is_looked_at else 10
    draws = predict(_state_space, guide, LEVELS, ahead=3, num_samples=count, seed=0)
    if is_looked_at:
        at = posterior_draws(guide, 4000)
        last = (at["q"][:, None] * at["e"]).sum(-1)
        torch.testing.assert_close(draws["later"][:, 0].mean(), last.mean(), atol=0.2, rtol=0.1)
    log_predictive_density(_state_space, guide, LEVELS, ahead=3, future=future, num_samples=3)
    report = evaluate(_state_space, guide, LEVELS, ahead=3, future=future, num_samples=3)
    assert {"y", "later"} <= report.sites.keys()


def test_that_a_density_is_also_that_of_the_fits_own_series_is_noted() -> None:
    guide = HyperNetworkGuide(_state_space, init_from=None).setup(LEVELS)
    both = evaluate(_state_space, guide, LEVELS, ahead=3, future=torch.ones(3), num_samples=3)
    assert sum("'later', which the model did not observe" in note for note in both.notes) == 1
    assert not evaluate(_state_space, guide, LEVELS, num_samples=3).notes


def test_what_is_new_and_follows_from_data_is_told() -> None:
    """Series of the data drawn anew, of which the forecast is another one's."""

    def walk(y: Tensor, ahead: int = 0) -> None:
        drift, last = pyro.sample("drift", dist.Normal(0.0, 1.0)), torch.tensor(0.0)
        for t in range(len(y) + ahead):
            here = y[t] if t < len(y) else None
            last = pyro.sample(f"y_{t}", dist.Normal(last + drift, 1.0), obs=here)

    guide = HyperNetworkGuide(walk, init_from=None).setup(Y)
    with pytest.warns(
        UserWarning, match=r"\['y_5', 'y_6'\].*Data that were passed have been drawn"
    ):
        predict(walk, guide, Y, ahead=2, num_samples=2)
    held = poutine.condition(walk, data={f"y_{t}": Y[t] for t in range(5)})
    assert predict(held, guide, Y, ahead=2, num_samples=2).keys() == {"y_5", "y_6"}


@pytest.mark.long
def test_a_saved_guide_with_its_model_knows_what_is_new() -> None:
    guide = HyperNetworkGuide(_state_space, init_from=None).setup(LEVELS)
    loaded = HyperNetworkGuide(_state_space, init_from=None)
    loaded.load_state_dict(guide.state_dict())
    evaluate(_state_space, loaded, LEVELS, ahead=3, future=torch.ones(3), num_samples=3)
    chains = _guide(refine)
    chains = Chains.from_state_dict(chains.state_dict(), _state_space, LEVELS)
    evaluate(_state_space, chains, LEVELS, ahead=3, future=torch.ones(3), num_samples=3)
    state = guide.state_dict()
    del state["_extra_state"]["first_call"]["sampled"]  # as of an older version
    old = HyperNetworkGuide(_state_space, init_from=None)
    old.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"does not draw \['more'\]"):
        evaluate(_state_space, old, LEVELS, ahead=3, future=torch.ones(3), num_samples=3)
    state["_extra_state"]["first_call"]["sampled"] = [3]
    with pytest.raises(StateError, match=r"names in 'first_call' of the state are \[3\]"):
        HyperNetworkGuide(_state_space, init_from=None).load_state_dict(state)


def test_a_guide_loaded_without_its_model_knows_what_is_new_by_the_models_program() -> None:
    guide = HyperNetworkGuide(_state_space, init_from=None).setup(LEVELS)
    state = guide.state_dict()
    loaded = HyperNetworkGuide.from_state_dict(state)
    evaluate(_state_space, loaded, LEVELS, ahead=3, future=torch.ones(3), num_samples=3)
    predict(_state_space, loaded, LEVELS, ahead=3, num_samples=3)

    def another(levels, ahead=0, future=None):
        return _state_space(levels, ahead=ahead, future=future)

    with pytest.warns(UserWarning, match=r"does not draw \['more'\]"):
        evaluate(another, loaded, LEVELS, ahead=3, future=torch.ones(3), num_samples=3)
    state["_extra_state"]["first_call"]["program"] = 3
    with pytest.raises(StateError, match="program in 'first_call' of the state is 3"):
        HyperNetworkGuide.from_state_dict(state)


def test_a_guide_loaded_without_its_model_knows_what_that_hid() -> None:
    def model(x, y=None):
        w, v = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wv")
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x + v, 0.5), obs=y)

    x = torch.randn(5)
    for hidden in ({"expose": ["w"]}, {"hide": ["v"]}):
        guide = HyperNetworkGuide(poutine.block(model, **hidden), init_from=None).setup(x, x)
        loaded = HyperNetworkGuide.from_state_dict(guide.state_dict())
        for one in (guide, loaded):
            with pytest.warns(UserWarning, match=r"does not draw \['v'\]"):
                predict(model, one, x, num_samples=3)
            with pytest.warns(UserWarning, match=r"does not draw \['v'\]"):
                evaluate(model, one, x, x, num_samples=3)


def test_a_state_of_another_models_guide_is_known_by_its_program() -> None:
    state = HyperNetworkGuide(line, init_from=None).setup(X, Y).state_dict()
    wrong, right = HyperNetworkGuide(with_bias), HyperNetworkGuide(line)
    wrong.load_state_dict(state)
    right.load_state_dict(state)
    for call in (
        lambda model, guide: predict(model, guide, X, num_samples=3),
        lambda model, guide: evaluate(model, guide, X, Y, num_samples=3),
        lambda model, guide: log_predictive_density(model, guide, X, Y, num_samples=3),
    ):
        call(line, right)
        with pytest.warns(UserWarning, match=r"does not draw \['b'\]"):
            call(with_bias, wrong)


def test_a_latent_that_is_marked_as_auxiliary_is_left_out_like_any_other() -> None:
    def marked(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x + b, 1.0), obs=y)

    guide = HyperNetworkGuide(line, init_from=None).setup(X, Y)
    for call in (evaluate, log_predictive_density):
        with pytest.warns(UserWarning, match=r"does not draw \['b'\]"):
            call(marked, guide, X, Y, num_samples=3)
    with pytest.raises(SiteError, match=r"may depend on \['b'\]"):
        to_arviz(marked, guide, X, Y, num_samples=3)
    assert "'b'" in warning_of_left_out(marked, guide, (X, Y), {})
    assert not warning_of_left_out(line, guide, (X, Y), {})
