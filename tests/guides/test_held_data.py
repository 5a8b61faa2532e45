"""Observations that a model holds itself are told where they are scored for other inputs."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.distributions import constraints

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.guides.held_data import observed_when_built, sampled_when_built

X, HELD = torch.randn(6, 1), torch.randn(6)


def _holds(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.deterministic("f", w * x[:, 0])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=HELD)


def _takes(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)


def _calls(model: Any, guide: Any) -> list[Any]:
    return [
        lambda *data: evaluate(model, guide, *data, num_samples=5),
        lambda *data: log_predictive_density(model, guide, *data, num_samples=5),
        lambda *data: to_arviz(model, guide, *data, num_samples=5),
    ]


@pytest.mark.long
def test_they_are_told_by_all_that_score() -> None:
    guide = HyperNetworkGuide(_holds, init_from=None).setup(X)
    for call in _calls(_holds, guide):
        call(X)  # its own inputs
        with pytest.warns(UserWarning, match=r"\['y'\] observes the same values .*def model\(x, y"):
            call(X + 1)


def _extra(prior: Any, seen: Tensor | None) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        m = pyro.sample("m", prior)
        pyro.sample("extra", dist.Normal(m, 1.0), obs=torch.tensor(0.2))
        mask = {} if seen is None or y is None else {"obs_mask": seen}
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(m * x[:, 0], 1.0), obs=y, **mask)

    return model


@pytest.mark.parametrize(
    "prior", [dist.Normal(0.0, 1.0), dist.ImproperUniform(constraints.positive, (), ())]
)
@pytest.mark.parametrize("seen", [None, torch.arange(6) % 2 == 0])
def test_what_was_observed_is_known_of_any_prior_and_of_data_in_part(
    prior: Any, seen: Tensor | None
) -> None:
    model = _extra(prior, seen)
    guide = HyperNetworkGuide(model, init_from=None).setup(X, HELD)
    assert observed_when_built(guide) >= {"y", "extra"}
    assert sampled_when_built(model, guide) >= {"y", "extra", "m", "data"}
    predict(model, guide, X, num_samples=5)  # no warning that y was forgotten


def test_improper_priors_hide_no_data_that_the_model_holds() -> None:
    def model(x: Tensor) -> None:
        m = pyro.sample("m", dist.ImproperUniform(constraints.real, (), ()))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(m * x[:, 0], 1.0), obs=HELD)

    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    with pytest.warns(UserWarning, match=r"\['y'\] observes the same values"):
        evaluate(model, guide, X + 1, num_samples=5)


@pytest.mark.parametrize("data", [(X, HELD), (X + 1, HELD), (X, HELD + 1), (X + 1, HELD + 1)])
def test_nothing_is_said_of_arguments(data: tuple[Tensor, ...]) -> None:
    guide = HyperNetworkGuide(_takes, init_from=None).setup(X, HELD)
    for call in _calls(_takes, guide):
        call(*data)


def test_nothing_is_said_of_what_nobody_knows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guide = AutoNormal(_holds)
        evaluate(_holds, guide, X, num_samples=2)
        evaluate(_holds, guide, X + 1, num_samples=2)


def test_what_is_wrong_with_a_call_is_told_by_it() -> None:
    guide = HyperNetworkGuide(_holds, init_from=None).setup(X)
    with pytest.raises(ValueError, match="expected one observation"):
        with pytest.warns(UserWarning, match="holds its observations itself"):
            evaluate(_holds, guide, torch.zeros(5, 1), num_samples=2)

    def fails(x: Tensor) -> None:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        evaluate(fails, guide, X + 1, num_samples=2)


def test_large_data_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_implicit.handlers.rows.row_coupling._MAX_NUMBERS_OF_ARGUMENTS", 5)
    guide = HyperNetworkGuide(_takes, init_from=None).setup(X, HELD)
    held = guide.first_call.held
    assert not held.arguments and held.observed == {"y": None}
    predicted = predict(_takes, guide, X, num_samples=2)  # of what was observed, nothing is told
    assert predicted["y"].shape == (2, 6)
    evaluate(_holds, guide, X + 1, num_samples=2)
