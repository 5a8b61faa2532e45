"""Supports survive being saved as plain values."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from pyro.distributions import constraints
from torch.distributions import biject_to

from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.supports import decode_support, encode_support

SINGLETONS = [
    "real",
    "real_vector",
    "positive",
    "nonnegative",
    "unit_interval",
    "simplex",
    "lower_cholesky",
    "corr_cholesky",
    "ordered_vector",
    "positive_ordered_vector",
    "softplus_positive",
    "positive_definite",
    "sphere",
]

PARAMETRIC = {
    "interval": lambda: constraints.interval(-1.0, 2.0),
    "interval of tensors": lambda: constraints.interval(torch.zeros(3), torch.arange(1.0, 4.0)),
    "greater_than": lambda: constraints.greater_than(3.0),
    "greater_than_eq": lambda: constraints.greater_than_eq(torch.tensor(3.0)),
    "less_than": lambda: constraints.less_than(-2.0),
    "half_open_interval": lambda: constraints.half_open_interval(0.0, 4.0),
    "independent": lambda: constraints.independent(constraints.positive, 2),
    "nested": lambda: constraints.independent(constraints.interval(torch.zeros(3), 5.0), 1),
}


def round_trip(support):
    file = io.BytesIO()
    torch.save(encode_support(support), file)
    file.seek(0)
    return decode_support(torch.load(file, weights_only=True), "z")


@pytest.mark.parametrize("name", SINGLETONS)
def test_named_supports_come_back_as_themselves(name):
    support = getattr(constraints, name)
    assert round_trip(support) is support
    again = round_trip(copy.deepcopy(support))  # as within a deep-copied guide
    assert type(again) is type(support)
    assert again.event_dim == support.event_dim


@pytest.mark.parametrize("name", PARAMETRIC)
def test_supports_with_arguments_come_back_with_them(name):
    support = PARAMETRIC[name]()
    for again in (round_trip(support), round_trip(copy.deepcopy(support))):
        assert type(again) is type(support)
        assert again.event_dim == support.event_dim
        u = torch.randn(2, 3)
        assert torch.equal(biject_to(again)(u), biject_to(support)(u))


def test_a_saved_bound_is_a_copy():
    bound = torch.zeros(3)
    support = round_trip(constraints.greater_than(bound))
    bound += 1
    assert torch.equal(support.lower_bound, torch.zeros(3))


class _Odd(constraints.Constraint):
    event_dim = 0


def test_an_unknown_support_cannot_be_decoded():
    code = encode_support(_Odd())
    assert code["type"] == "unknown"
    with pytest.raises(StateError, match=r"support of site 'z' \(.*Odd.*\) cannot be stored"):
        decode_support(code, "z")
    with pytest.raises(StateError, match=r"support of site 'z' \(unknown\)"):
        decode_support({}, "z")
