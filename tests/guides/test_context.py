"""What a conditional guide reads from the model's arguments."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit import ConditionalHyperNetworkGuide, fit, predict
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.guides.context import check_context, read_context


@pytest.mark.long
@given(shape=st.lists(st.integers(1, 3), min_size=1, max_size=4), by_name=st.booleans())
def test_the_first_argument_by_rows(shape, by_name) -> None:
    x = torch.randn(shape)
    value = read_context(None, () if by_name else (x, None), {"x": x} if by_name else {})
    assert torch.equal(value, x.reshape(shape[0], -1))


def test_a_function_of_the_arguments() -> None:
    x, label = torch.randn(4, 2), torch.ones(4)
    value = read_context(
        lambda x, y=None, label=None: torch.cat([x, label[:, None]], 1), (x,), {"label": label}
    )
    assert value.shape == (4, 3)
    assert torch.equal(value[:, 2], label)


@pytest.mark.parametrize("context", [3, "x", torch.zeros(3)])
def test_a_context_is_a_function(context) -> None:
    with pytest.raises(ArgumentError, match="context=.*expected a function"):
        check_context(context)
    check_context(None)


def test_what_is_no_context() -> None:
    with pytest.raises(ArgumentError, match="was called without any"):
        read_context(None, (), {})
    with pytest.raises(ArgumentError, match="the context is a list; expected a tensor"):
        read_context(None, ([1.0],), {})
    for empty in (torch.zeros(()), torch.zeros(0, 3), torch.zeros(3, 0)):
        with pytest.raises(ShapeError, match=r"expected \(rows, \.\.\.\)"):
            read_context(None, (empty,), {})
    with pytest.raises(ArgumentError, match="torch.complex64; expected real numbers"):
        read_context(None, (torch.ones(3, 1, dtype=torch.complex64),), {})


def test_a_context_of_observations_that_are_left_out_is_told():
    def model(x, y=None):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    x = torch.zeros(4, 1)
    readers = {
        "no attribute": lambda x, y=None: torch.cat([x, y.unsqueeze(-1)], -1),
        "NoneType": lambda x, y=None: torch.cat([x, y[:, None]], -1),
    }
    for context in readers.values():
        guide = ConditionalHyperNetworkGuide(model, context=context).setup(x, torch.zeros(4))
        with pytest.raises(ArgumentError, match="reads an argument that is None in this call"):
            predict(model, guide, x, num_samples=2)

    def broken(x, y=None):
        return x.nothing

    with pytest.raises(AttributeError, match="nothing"):
        read_context(broken, (x,), {})


def of_rows(x, y=None):
    with pyro.plate("data", 10):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 0.1), obs=y)


@pytest.mark.parametrize(
    ("context", "error", "match"),
    [
        (lambda x, y=None: x[:5], ShapeError, "context has 5 rows, and plate 'data'.*10 of 10"),
        (lambda x, y=None: x * torch.nan, NonFiniteError, "context of 10 of 10 rows is not finite"),
        (lambda x: x, ArgumentError, "does not take the model's arguments"),
    ],
)
def test_contexts_that_do_not_fit_the_model(context, error, match):
    x = torch.randn(10, 2)
    guide = ConditionalHyperNetworkGuide(of_rows, context=context)
    with pytest.raises(error, match=match):
        fit(of_rows, guide, x, x[:, 0], num_steps=2, progress=False)
