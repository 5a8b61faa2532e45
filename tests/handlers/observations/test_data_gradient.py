"""A likelihood without a gradient for its latents is told; one that has any is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import TraceGraph_ELBO, config_enumerate
from torch import Tensor

from pyro_implicit import AlphaEnergy, HyperNetworkGuide, fit, refine
from pyro_implicit.handlers.observations.data_gradient import (
    warning_of_no_gradient,
    warning_of_own_noise,
)

X = torch.linspace(-1.0, 1.0, 8)
TOLD = "no observation has a density with a gradient for the latents"


def by(mean: Callable[[Tensor, Tensor], Any]) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean(w, x), 0.3), obs=y)

    return model


def without(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        return w[..., 0] * x


BAD = {
    "item": by(lambda w, x: w[0].item() * x),
    "numpy": by(lambda w, x: torch.as_tensor(np.asarray(w.detach())[0] * np.asarray(x))),
    "detach": by(lambda w, x: w.detach()[0] * x),
    "no_grad": by(without),
    "unused": by(lambda w, x: x),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore:the chains are evaluated one after the other")
def test_fit_and_refine_tell(name: str) -> None:
    guide = HyperNetworkGuide(BAD[name], init_from=None)
    result = None
    with pytest.warns(UserWarning, match=TOLD):
        result = fit(
            BAD[name], guide, X, X, num_steps=2, progress=False, seed=0, objective=AlphaEnergy(2)
        )
    assert sum(text.startswith(TOLD) for text in result.warnings) == 1
    start = {"w": torch.randn(2, 2)}
    with pytest.warns(UserWarning, match=TOLD) as caught:
        refine(BAD[name], start, X, X, num_chains=2, num_steps=0, progress=False)
    assert {one.filename for one in caught if TOLD in str(one.message)} == {__file__}


@config_enumerate
def through_a_choice(x: Tensor, y: Tensor | None = None) -> None:
    p = pyro.sample("p", dist.Beta(2.0, 2.0))
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Bernoulli(p))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def by_factor(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.factor("f", -(w**2))


GOOD: dict[str, Any] = {
    "a line": by(lambda w, x: w[..., :1] * x),
    "a choice": through_a_choice,
    "a factor": by_factor,
}


@pytest.mark.parametrize("name", GOOD)
def test_a_gradient_by_any_way_is_enough(name: str) -> None:
    model = GOOD[name]
    guide = HyperNetworkGuide(model, init_from=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, guide, X, X, num_steps=2, progress=False, seed=0)


def test_models_that_cannot_be_run_are_left_alone() -> None:
    def broken() -> None:
        raise KeyError

    assert warning_of_no_gradient(broken, {"w": torch.zeros(2)}, (), {}) == ""
    assert warning_of_no_gradient(BAD["item"], {}, (X, X), {}) == ""


def partly(scale: Callable[[Tensor], Any]) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        w = pyro.sample("w", dist.Normal(0.0, tau))
        sigma = pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x, scale(sigma)), obs=y)

    return model


@pytest.mark.long
@pytest.mark.parametrize(
    "scale", [lambda s: s.item(), lambda s: s.detach(), lambda s: float(s.detach())]
)
@pytest.mark.filterwarnings("ignore:the chains are evaluated one after the other")
def test_some_latents_without_a_gradient_are_named(scale: Any) -> None:
    model = partly(scale)
    told = r"densities depend on latents \['sigma'\] and have no gradient"
    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.warns(UserWarning, match=told):
        fit(model, guide, X, X, num_steps=2, progress=False, objective=AlphaEnergy(2))
    start = {name: torch.ones(2) for name in ("tau", "w", "sigma")}
    with pytest.warns(UserWarning, match=told):
        refine(model, start, X, X, num_chains=2, num_steps=0, progress=False)


def change_point(t: Tensor, y: Tensor | None = None) -> None:
    tau = pyro.sample("tau", dist.Uniform(0.0, 60.0))
    low, high = (pyro.sample(name, dist.Exponential(0.2)) for name in ("low", "high"))
    with pyro.plate("times", len(t)):
        pyro.sample("y", dist.Poisson(torch.where(t < tau, low, high)), obs=y)


@given(st.floats(1.0, 59.0))
@settings(max_examples=30, deadline=None)
def test_a_latent_that_data_are_compared_with_is_named_wherever_it_is(tau: float) -> None:
    """A hundredth of it may lie between two rows."""
    values = {"tau": torch.tensor(tau), "low": torch.tensor(3.0), "high": torch.tensor(8.0)}
    times = torch.arange(60.0)
    told = warning_of_no_gradient(change_point, values, (times, times), {})
    assert told.startswith("densities depend on latents ['tau'] and have no gradient")


@pytest.mark.long
def test_no_advice_at_the_end_contradicts_it() -> None:
    """Neither more steps nor chains by gradients mend what has none."""
    times = torch.arange(60.0)
    guide = HyperNetworkGuide(change_point, init_from=None)
    with pytest.warns(UserWarning, match="no step mends it"):
        result = fit(change_point, guide, times, times // 25, num_steps=600, progress=False, seed=0)
    assert result.reason == "limit" and len(result.warnings) == 1


def test_scales_of_latents_and_unused_ones_have_no_gradient_and_need_none() -> None:
    values = {name: torch.tensor(0.7) for name in ("tau", "w", "sigma")}
    for scale in (lambda s: s, lambda s: 0.3):
        model = partly(scale)
        assert not warning_of_no_gradient(model, values, (X, X), {})
        assert not warning_of_own_noise(model, values, (X, X), {})


@pytest.mark.parametrize("noise", [torch.randn_like, torch.rand_like, torch.bernoulli])
def test_noise_of_the_models_own_is_told(noise: Any) -> None:
    model = by(lambda w, x: w[0] * x + noise(x.abs()))
    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.warns(UserWarning, match=r"other densities of \['y'\]: it draws random numbers"):
        fit(model, guide, X, X, num_steps=2, progress=False)


def test_rows_and_latents_that_are_drawn_are_no_noise_of_the_models_own() -> None:
    def rows(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x), subsample_size=3) as some:
            pyro.sample("y", dist.Normal(w, 1.0), obs=x[some])

    def two(x: Tensor) -> None:
        w, more = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("w", "more"))
        pyro.sample("y", dist.Normal(w + more, 1.0), obs=x[0])

    for model in (rows, two):
        assert not warning_of_own_noise(model, {"w": torch.tensor(0.3)}, (X,), {})
    assert not warning_of_own_noise(two, {}, (), {})  # which does not run


def test_other_sites_in_another_run_are_noise_too() -> None:
    def one_of_two(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        name = "a" if torch.rand(()) < torch.rand(()) else "b"
        pyro.sample(name, dist.Normal(w, 1.0), obs=x[0])

    told = warning_of_own_noise(one_of_two, {"w": torch.tensor(0.1)}, (X,), {})
    assert "other densities of ['a']" in told


def test_latents_that_are_learned_by_their_score_need_none() -> None:
    def switched(x: Tensor, y: Tensor | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Bernoulli(0.5))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(torch.where(z > 0.5, mu + 1, mu - 1), 1.0), obs=y)

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("mu", dist.Normal(pyro.param("loc", torch.zeros(())), 1.0))
        pyro.sample("z", dist.Bernoulli(logits=pyro.param("logit", torch.zeros(()))))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(switched, guide, X, X, objective=TraceGraph_ELBO(), num_steps=2, progress=False, seed=0)


def test_latents_that_only_others_depend_on_cost_a_few_runs() -> None:
    """All of them are tried at once, and one by one where some is needed."""
    runs = []

    def model(x: Tensor, y: Tensor | None = None) -> None:
        runs.append(1)
        scales = [pyro.sample(f"tau{i}", dist.HalfNormal(1.0)) for i in range(8)]
        w = [pyro.sample(f"w{i}", dist.Normal(0.0, scale)) for i, scale in enumerate(scales)]
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(sum(w) * x, 1.0), obs=y)

    values = {f"{name}{i}": torch.tensor(0.7) for name in ("tau", "w") for i in range(8)}
    assert not warning_of_no_gradient(model, values, (X, X), {})
    assert len(runs) == 6
