"""The first arguments of a call, however they were given."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit._signature import in_order, leading_arguments, parameters_of


def three(a: Any, b: Any = None, c: Any = None, *, d: Any = None) -> None: ...


class Net(nn.Module):
    def forward(self, a: Any, b: Any = None, c: Any = None, *, d: Any = None) -> None: ...


@pytest.mark.parametrize("program", [three, Net(), poutine.block(three)])
@given(num_positional=st.integers(0, 3), order=st.permutations("abcd"), num_named=st.integers(0, 4))
def test_the_order_is_that_of_the_parameters(
    program: Any, num_positional: int, order: list[str], num_named: int
) -> None:
    names = list("abc")
    args = tuple(names[:num_positional])
    kwargs = {name: name for name in order if name not in args}
    kwargs = dict(list(kwargs.items())[:num_named])
    found = leading_arguments(program, args, kwargs)
    expected = names[: len(found)]
    assert list(found) == expected
    assert len(found) == 3 or names[len(found)] not in kwargs


def test_a_callable_that_does_not_tell() -> None:
    assert parameters_of(dict) is None  # type: ignore[arg-type]
    assert leading_arguments(dict, (1,), {"a": 2}) == (1,)
    assert leading_arguments(lambda *args, **kwargs: None, (1,), {"a": 2}) == (1,)


X, Y = torch.randn(6, 2), torch.randn(6)


def rows(x: Tensor, y: Tensor | None = None) -> Tensor:
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(z + x[:, 0], 0.5), obs=y)


@pytest.mark.parametrize("call", [{"x": X, "y": Y}, {"y": Y, "x": X}])
def test_the_context_is_the_first_parameter(call: dict[str, Tensor]) -> None:
    guide = ConditionalHyperNetworkGuide(rows)
    assert torch.equal(guide.read_context(**call), X)
    assert torch.equal(guide.read_context(X, Y), X)


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("score", [evaluate, log_predictive_density, predict])
def test_other_rows_are_told_however_they_are_given(score: Any, is_named: bool) -> None:
    guide = HyperNetworkGuide(rows)
    guide.setup(x=X, y=Y) if is_named else guide.setup(X, Y)
    other = torch.randn(6, 2)
    with pytest.warns(UserWarning, match="these are 6 other ones"):
        score(rows, guide, y=Y, x=other, num_samples=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(rows, guide, y=Y, x=X, num_samples=2)
        score(rows, guide, X, Y, num_samples=2)


def test_rows_are_those_of_the_first_parameter() -> None:
    most: list[int] = []

    def model(x: Tensor, s: Tensor, y: Tensor | None = None) -> None:
        most.append(len(x))
        w = pyro.sample("w", dist.Normal(torch.zeros(3), s).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal((x * w[..., None, :]).sum(-1), 1.0), obs=y)

    x, y, s = torch.randn(100, 3), torch.randn(100), torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, s, y)
    for order in ({"x": x, "s": s, "y": y}, {"s": s, "y": y, "x": x}):
        found = []
        for call in (to_arviz, evaluate, predict):
            most.clear()
            call(model, guide, num_samples=3, batch_size=32, **order)
            found.append(sum(size <= 64 for size in most) > 2)
        assert found == [True] * 3


@given(order=st.permutations("abcd"), count=st.integers(0, 4))
def test_keywords_in_order(order: list[str], count: int) -> None:
    kwargs = dict.fromkeys([*order[:count], "e"])
    assert list(in_order(three, kwargs)) == [*sorted(order[:count]), "e"]
