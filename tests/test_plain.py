"""Comparisons of saved values."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_implicit._plain import as_state_error, check_like, first_difference, non_finite
from pyro_implicit.exceptions import ShapeError, StateError

VALUE = {"a": [1, 2.0, {"b": torch.ones(2)}], "c": None, "d": "text", "e": True}


def changed(**changes):
    return VALUE | changes


def test_equal_values_do_not_differ():
    assert first_difference(VALUE, changed()) is None
    assert first_difference(math.nan, math.nan) is None
    assert first_difference(torch.tensor(2.0), 2.0) is None  # a bound, here a number


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (changed(d="other"), "x.d is 'other' there and 'text' here"),
        (changed(a=[1]), r"x.a has 1 entries there and 3 here"),
        (changed(a=[1, 2.0, {"b": torch.zeros(2)}]), r"x.a\[2\].b is a tensor"),
        (changed(a=[1, 2.0, {"b": "text"}]), r"x.a\[2\].b is 'text' there"),
        (changed(e=1), "x.e is 1 there and True here"),
        (changed(f=1), r"x lacks nothing and has \['f'\] more"),
        ({}, "x lacks .* and has nothing more"),
        (3, "x is 3 there"),
    ],
)
def test_the_first_difference_is_named(found, told):
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(first_difference(found, VALUE, "x"))


@pytest.mark.parametrize("found", [changed(), changed(c=3), changed(f=1, a=[])])
def test_values_of_the_same_making(found):
    check_like(found, VALUE, "x")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (changed(d=1), r"x\['d'\] of the checkpoint is 1; expected a str"),
        (changed(d=None), "is None; expected a str"),
        (changed(e=1), "is 1; expected True or False"),
        (changed(a=[1, "2", {}]), r"x\['a'\]\[1\] of the checkpoint is '2'; expected a number"),
        (
            changed(a=[1, 2, {"b": torch.ones(3)}]),
            r"shape \(3,\).*; expected a tensor of shape \(2,",
        ),
        (changed(a=[1, 2, {}]), r"x\['a'\]\[2\] of the checkpoint lacks \['b'\]"),
        ([], "expected a dict"),
    ],
)
def test_others_are_refused(found, told):
    with pytest.raises(StateError, match=told):
        check_like(found, VALUE, "x")


def test_shapes_may_be_left_out():
    check_like(torch.ones(3), torch.ones((), dtype=torch.float64), "x", shapes=False)
    check_like(None, 1.0, "x", shapes=False)
    with pytest.raises(StateError, match="expected a tensor"):
        check_like(1.0, torch.ones(()), "x", shapes=False)


def test_not_finite():
    values = {
        "a": torch.tensor([1.0, math.inf]),
        "b": 1,
        "c": math.nan,
        "d": torch.ones(1),
        "e": "",
        "f": [1.0, (0.5, math.nan)],
        "g": [1.0, "", None],
    }
    assert non_finite(values) == ["a", "c", "f"]


def test_what_reading_raises_becomes_a_state_error():
    with pytest.raises(StateError, match=r"the file cannot be taken up: .*KeyError: 'a'"):
        with as_state_error("the file"):
            {}["a"]
    with pytest.raises(StateError, match="ShapeError: ours"), as_state_error("the file"):
        raise ShapeError("ours")
    with pytest.raises(StateError, match="^as it was$"), as_state_error("the file"):
        raise StateError("as it was")


def test_a_value_that_something_else_is_to_take_up_is_not_called_damaged_alone():
    told = r"the state cannot be taken up \(ShapeError: no width\)\. Make what is to take"
    with pytest.raises(StateError, match=told), as_state_error("the state"):
        raise ShapeError("no width")
