"""Functions of a model, a guide and data refuse the same, and their warnings point at a call."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, SiteError
from pyro_implicit.guides.seen_observations import BEGIN_OF_WARNING
from pyro_implicit.inference.fitted_call import FittedCall

X, Y = torch.randn(6, 3), torch.randn(6)
CALLS: tuple[Callable[..., Any], ...] = (predict, evaluate, log_predictive_density, to_arviz)
SCORED = CALLS[1:3]


def levels(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", len(x)):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level, 0.1), obs=y)


@pytest.fixture(scope="module")
def guide() -> Any:
    return HyperNetworkGuide(levels, init_from=None).setup(X, Y)


@pytest.mark.parametrize("call", CALLS)
def test_warnings_of_arguments_point_at_the_call(call: Any, guide: Any) -> None:
    with pytest.warns(UserWarning, match="for each of the 6 rows") as told:
        call(levels, guide, X + 1, Y, num_samples=4)
    assert {one.filename for one in told} == {__file__}


@pytest.mark.parametrize("call", SCORED)
def test_a_guide_that_reads_what_is_scored_is_told_at_the_call(call: Any) -> None:
    def reads(x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("level", dist.Normal(torch.zeros(6) if y is None else y, 0.1))

    with pytest.warns(UserWarning, match=BEGIN_OF_WARNING) as told:
        call(levels, reads, X, Y, num_samples=4)
    assert {one.filename for one in told} == {__file__}


@pytest.mark.parametrize("call", CALLS)
def test_what_no_function_can_use_is_refused_by_all(call: Any, guide: Any) -> None:
    name, more = call.__name__, {"num_samples": 4}
    with pytest.raises(ArgumentError, match=re.escape(f"{name}(model, guide, ...)")):
        call(guide, levels, X, Y, **more)
    with pytest.raises(ArgumentError, match="the model itself"):
        call(levels, levels, X, Y, **more)
    with pytest.raises(ArgumentError, match="num_sample"):
        call(levels, guide, X, Y, num_sample=4, **more)
    with poutine.condition(data={"level": torch.zeros(6)}), pytest.raises(SiteError, match=name):
        call(levels, guide, X, Y, **more)
    with pytest.raises(ArgumentError, match="argument 0 is on the device 'meta'"):
        call(levels, guide, X.to("meta"), Y, **more)
    spoilt = HyperNetworkGuide(levels, init_from=None).setup(X, Y)
    with torch.no_grad():
        next(spoilt.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="is NaN"):
        call(levels, spoilt, X, Y, **more)


@pytest.mark.parametrize("call", CALLS[1:])
def test_infinite_observations_are_refused_by_all_that_score(call: Any, guide: Any) -> None:
    y = Y.clone()
    y[2] = torch.inf
    with pytest.raises(NonFiniteError, match="site 'y' observes infinite values"):
        call(levels, guide, X, y, num_samples=4)


def test_a_text_is_told_once_and_nothing_is_no_text(guide: Any) -> None:
    def function() -> None:
        FittedCall(predict, levels, guide, (X,), {}).warn(["a", None, "", "a", "b"])

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        function()
    assert [str(one.message) for one in told] == ["a", "b"]
    assert {one.filename for one in told} == {__file__}
