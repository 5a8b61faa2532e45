"""Discrete latents with all their values at once: models that are not made for it are told so."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.exceptions import NonFiniteError, ShapeError, SiteError
from pyro_implicit.training.fitting.arguments import Arguments
from pyro_implicit.training.fitting.checks.listed_values import (
    blames_listed_values,
    check_plates_of_listed,
)

X, Y = torch.randn(12, 4), torch.randn(12)


@config_enumerate
def indicators(x: Tensor, y: Tensor) -> None:
    with pyro.plate("columns", 4):
        inside = pyro.sample("inside", dist.Bernoulli(0.5))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ (inside * w), 1.0), obs=y)


def plain(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_a_model_for_one_value_of_each() -> None:
    with pytest.raises(SiteError, match=r"latents \['inside'\], and fails where they are summed"):
        fit(indicators, HyperNetworkGuide(indicators), X, Y, num_steps=3, progress=False)


def test_errors_of_models_without_any_are_what_they_were() -> None:
    with pytest.raises(ShapeError, match="the model's numbers do not fit the data"):
        fit(plain, HyperNetworkGuide(plain), X, Y, num_steps=3, progress=False)
    arguments = Arguments((X, Y), None, {})
    with pytest.raises(ShapeError, match="^of our own$"):
        with blames_listed_values(indicators, arguments):
            raise ShapeError("of our own")
    for model in (plain, indicators):  # which the second does not raise either
        with pytest.raises(ValueError, match="^of this shape$"):
            with blames_listed_values(model, arguments):
                raise ValueError("of this shape")


@pytest.mark.parametrize("error", [ValueError("Expected parameter loc"), NonFiniteError("NaN")])
def test_errors_of_something_else_are_what_they_were(error: Exception) -> None:
    """Also where a model has discrete latents, and the error was made of a raw one."""
    with pytest.raises(type(error)) as caught:
        with blames_listed_values(indicators, Arguments((X, Y), None, {})):
            raise error from ValueError("of this shape")
    assert caught.value is error


def test_pyros_own_objective_is_looked_at_before_it_starts() -> None:
    @config_enumerate
    def outside(x: Tensor, y: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("columns", 4):
            inside = pyro.sample("inside", dist.Bernoulli(torch.full((4,), 0.5)))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(m * (x * inside[..., None, :]).sum(-1), 1.0), obs=y)

    def no_error_of_its_own(*args: Any) -> None:
        pyro.sample("other", dist.Normal(0.0, 1.0))

    guide = AutoNormal(pyro.poutine.block(outside, expose=["m"]))
    objective = TraceEnum_ELBO(max_plate_nesting=1)
    with pytest.raises(SiteError):
        fit(outside, guide, X, Y, objective=objective, num_steps=3, progress=False)
    check_plates_of_listed(plain, no_error_of_its_own, (X, Y), {})


def test_errors_of_a_judge_of_ones_own_are_not_those_of_listed_values() -> None:
    def judge() -> float:
        return float(torch.ones(3) @ torch.ones(2))

    def mixture(x: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(m * z, 1.0), obs=x)

    with pytest.raises((RuntimeError, ShapeError), match="(?!.*summed out).*inconsistent tensor"):
        fit(mixture, HyperNetworkGuide(mixture), Y, validation=judge, num_steps=3, progress=False)


def test_latents_that_only_a_later_batch_has_to_list_are_looked_at() -> None:
    group = torch.arange(12) % 3

    def model(y: Tensor, label: Any = None) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 3):
            infer: Any = {"enumerate": "parallel", "expand": True}
            z = pyro.sample("z", dist.Bernoulli(0.5), obs=label, infer=infer)
        with pyro.plate("rows", 12):
            pyro.sample("y", dist.Normal(m * z[..., group], 1.0), obs=y)

    guide = AutoNormal(pyro.poutine.block(model, expose=["m"]))
    batches = [(Y, torch.ones(3)), (Y,)]
    with pytest.raises(SiteError, match="no probability of it"):
        fit(model, guide, batches=batches, num_steps=3, progress=False)


@pytest.mark.parametrize("objective", [None, TraceEnum_ELBO(max_plate_nesting=1)])
def test_parameters_begin_by_the_seed_of_the_run(objective: Any) -> None:
    """Looks that come before a step make none: restarts by seed would all begin at one point."""

    def model(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            sd = pyro.param("sd", lambda: 0.5 + torch.rand(()))
            pyro.sample("y", dist.Normal(loc + z, sd), obs=y)

    def guide(y: Tensor) -> None:
        if len(y) == 4:  # of the later batch alone
            pyro.param("late", lambda: torch.randn(()))
        pyro.sample("loc", dist.Normal(pyro.param("m", lambda: torch.randn(())), 1.0))

    begun = []
    for seed in (1, 2, 3):
        pyro.clear_param_store()
        options: Any = {"objective": objective, "num_steps": 2, "lr": 1e-9, "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of batches that are not scaled
            fit(model, guide, batches=[(Y[:8],), (Y[8:],)], seed=seed, **options)
        store = pyro.get_param_store()
        begun.append(
            (round(float(store["m"].detach()), 4), round(float(store["late"].detach()), 4))
        )
    assert len({m for m, _ in begun}) == len({late for _, late in begun}) == 3
