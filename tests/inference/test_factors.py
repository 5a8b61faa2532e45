"""Densities of rows that hold no data are told where data are scored."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.exceptions import SiteError

T = torch.linspace(0.1, 2.0, 20)
CENSORED = torch.arange(20) % 2 == 0


def by_factor(t: Tensor, censored: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(t)):
        with pyro.poutine.mask(mask=~censored):
            pyro.sample("t", dist.Exponential(rate), obs=t)
        pyro.factor("survival", -rate * t * censored)


def by_ones(t: Tensor, censored: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(t)):
        with pyro.poutine.mask(mask=~censored):
            pyro.sample("t", dist.Exponential(rate), obs=t)
        with pyro.poutine.mask(mask=censored):
            pyro.sample("later", dist.Bernoulli((-rate * t).exp()), obs=torch.ones_like(t))


def prior_factor(t: Tensor, censored: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    pyro.factor("narrow", -rate.square())
    with pyro.plate("data", len(t)):
        pyro.sample("t", dist.Exponential(rate), obs=t)


def fitted(model: Any) -> Any:
    guide = AutoNormal(model)
    guide(T, CENSORED)
    return guide


SCORES: dict[str, Any] = {"log_predictive_density": log_predictive_density, "to_arviz": to_arviz}
TOLD = r"factor sites \['survival'\] are within plates and count for nothing"


@pytest.mark.parametrize("name", SCORES)
def test_a_factor_of_rows_is_told(name: str) -> None:
    with pytest.warns(UserWarning, match=TOLD):
        SCORES[name](by_factor, fitted(by_factor), T, CENSORED, num_samples=3)


@pytest.mark.parametrize("name", SCORES)
def test_others_are_not(name: str) -> None:
    guide = fitted(prior_factor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SCORES[name](prior_factor, guide, T, CENSORED, num_samples=3)


@pytest.mark.long
def test_a_fit_tells_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    guide = HyperNetworkGuide(by_factor)
    options: dict[str, Any] = {"num_steps": 101, "progress": False, "seed": 0}
    with pytest.warns(UserWarning, match=TOLD) as told:
        result = fit(by_factor, guide, T, CENSORED, validation=(T + 1, CENSORED), **options)
    assert list(result.scores) == [100, 101]
    assert any("'survival'" in text for text in result.warnings)
    assert sum("'survival'" in str(one.message) for one in told) == 1


def test_ones_that_a_model_observes_are_no_data_of_its_own() -> None:
    guide = HyperNetworkGuide(by_ones, init_from=None).setup(T, CENSORED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(by_ones, guide, T + 0.5, CENSORED, num_samples=5)
        log_predictive_density(by_ones, guide, T + 0.5, CENSORED, num_samples=5)


def test_a_likelihood_by_a_factor_alone_is_told_as_what_it_is() -> None:
    """The observations were passed: it is no data that are missing."""

    def model(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.factor("ll", -((y - a) ** 2))

    guide = HyperNetworkGuide(model, init_from=None).setup(torch.ones(4))
    for score in (log_predictive_density, evaluate):
        with pytest.raises(SiteError, match=r"by pyro.factor alone \('ll'\)"):
            score(model, guide, torch.ones(4), num_samples=3)

    def without_plate() -> None:
        p = pyro.sample("p", dist.Beta(2.0, 2.0))
        pyro.factor("ll", dist.Binomial(10, p).log_prob(torch.tensor(7.0)))

    guide = HyperNetworkGuide(without_plate, init_from=None).setup()
    for score in (log_predictive_density, evaluate):
        with pytest.raises(SiteError, match=r"by pyro.factor alone \('ll'\)"):
            score(without_plate, guide, num_samples=3)


def test_nothing_to_predict_is_told() -> None:
    def factors(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.factor("ll", -((y - a) ** 2))

    guide = HyperNetworkGuide(factors, init_from=None).setup(T)
    with pytest.warns(UserWarning, match=r"observes by pyro.factor alone \('ll'\)"):
        assert predict(factors, guide, T, num_samples=2) == {}
    with pytest.warns(UserWarning, match=r"observes by pyro.factor alone \('ll'\)"):
        to_arviz(factors, guide, T, num_samples=2)
