"""Observations that are NaN are told by site and number, unless they are masked."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import evaluate, log_predictive_density
from pyro_implicit.exceptions import ArgumentError, NonFiniteError
from pyro_implicit.handlers.masks.missing_data import missing_data

DATA = torch.tensor([0.5, torch.nan, -1.0, torch.nan])
TOLD = r"site 'y' observes 2 NaN among its 4 numbers, the first at index \(1,\)"


def model(y: Tensor, masked: bool = False) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        with poutine.mask(mask=~DATA.isnan() if masked else torch.tensor(True)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def guide(y: Tensor, masked: bool = False) -> None:
    pyro.sample("mean", dist.Delta(torch.tensor(0.0)))


def score(kind: str, *args: Any) -> float:
    if kind == "evaluate":
        return evaluate(model, guide, *args, num_samples=2, seed=0).log_density.value
    return float(log_predictive_density(model, guide, *args, num_samples=2, seed=0).sum() / 2)


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("kind", ["evaluate", "log_predictive_density"])
def test_scores_name_the_site_and_leave_out_what_is_masked(kind: str, validates: bool) -> None:
    with pyro.validation_enabled(validates):
        with pytest.raises(NonFiniteError, match=TOLD):
            score(kind, DATA)
        expected = dist.Normal(0.0, 1.0).log_prob(torch.tensor([0.5, -1.0])).mean()
        assert score(kind, DATA.nan_to_num(), True) == pytest.approx(float(expected))
        if not validates:
            assert score(kind, DATA, True) == pytest.approx(float(expected))
        else:  # the distribution refuses them, whether they count or not
            with pytest.raises(NonFiniteError, match=r"obs=y.nan_to_num\(\)"):
                score(kind, DATA, True)


@pytest.mark.parametrize("value", [torch.ones(3), torch.ones(3).long(), 1.0])
def test_there_is_nothing_to_tell_of_other_data(value: Any) -> None:
    site = {"name": "y", "value": value, "is_observed": True}
    assert missing_data(site) is None
    assert missing_data(site | {"value": DATA, "is_observed": False}) is None


def test_other_values_that_a_distribution_refuses_are_no_missing_data() -> None:
    def counts(y: Tensor) -> None:
        rate = pyro.sample("mean", dist.Delta(torch.tensor(1.0)))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    with pytest.raises(ArgumentError, match="outside of the support"):
        log_predictive_density(counts, guide, torch.tensor([-1.0]), num_samples=1)
