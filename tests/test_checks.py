"""The one home of argument checks: what passes comes back plain, everything else is named."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit import _checks as checks
from pyro_implicit.exceptions import ArgumentError, ShapeError, StateError


def _named(value):
    """As ``repr``, but the same in every process."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


NONSENSE = [None, "3", b"3", [], {}, object(), 1j, int, torch.zeros(2), np.zeros(2), len]
NOT_COUNTS = [*NONSENSE, True, 1.0, np.float64(2), math.nan, math.inf, torch.tensor(2.0)]
NOT_NUMBERS = [*NONSENSE, True, math.nan, math.inf, -math.inf, torch.tensor(True)]


@given(st.integers(-5, 50), st.integers(-5, 50), st.integers(0, 50))
def test_counts_within_their_limits_come_back_plain(value, minimum, span):
    for kind in (int, np.int32, np.int64):
        if minimum <= value <= minimum + span:
            found = checks.check_count("n", kind(value), minimum, minimum + span)
            assert (type(found), found) == (int, value)
        else:
            with pytest.raises(ArgumentError, match="^n=.*expected an integer >= "):
                checks.check_count("n", kind(value), minimum, minimum + span)


@pytest.mark.parametrize("value", NOT_COUNTS, ids=_named)
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ArgumentError, match=r"^n=.*expected an integer >= 1 \(draws\)\.$"):
        checks.check_count("n", value, why=" (draws)")


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int8(2), torch.tensor([2.0]), Fraction(2)]
)
def test_numbers_of_every_kind_come_back_plain(value):
    found = checks.check_number("x", value, minimum=2, maximum=2, above=1, below=3)
    assert (type(found), found) == (float, 2.0)


@pytest.mark.parametrize(
    "limits", [{"minimum": 3}, {"above": 2}, {"maximum": 1}, {"below": 2}], ids=str
)
def test_numbers_outside_of_each_limit_are_refused(limits):
    with pytest.raises(ArgumentError, match="^x=2; expected a finite number [<>]=? [123]"):
        checks.check_number("x", 2, **limits)


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=_named)
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ArgumentError, match="^x=.*expected a finite number"):
        checks.check_number("x", value)


def test_sequences_of_counts():
    assert checks.check_counts("dims", [np.int64(3), 2]) == (3, 2)
    assert checks.check_counts("dims", torch.Size([3])) == (3,)
    assert checks.check_counts("dims", ()) == ()
    for value in ["12", 3, None, {1}, torch.ones(2)]:
        with pytest.raises(ArgumentError, match="^dims=.*sequence of integers >= 1"):
            checks.check_counts("dims", value)
    with pytest.raises(ArgumentError, match="non-empty sequence"):
        checks.check_counts("dims", [], empty=False)
    with pytest.raises(ArgumentError, match="of length 2, such as"):
        checks.check_counts("dims", [1], length=2)
    with pytest.raises(ArgumentError, match=r"^dims\[1\]=0; expected an integer >= 1\.$"):
        checks.check_counts("dims", [1, 0])


@pytest.mark.parametrize(
    "value", [None, 0, 1, "no", np.bool_(True), torch.tensor(True)], ids=_named
)
def test_flags(value):
    assert checks.check_flag("flag", True) is True
    with pytest.raises(ArgumentError, match="^flag=.*expected True or False"):
        checks.check_flag("flag", value)


def test_choices_are_told_apart_by_type():
    assert checks.check_choice("kind", None, ("a", None)) is None
    for value in ["b", 1, ["a"], torch.zeros(2)]:
        with pytest.raises(ArgumentError, match="^kind=.*expected 'a', None or True"):
            checks.check_choice("kind", value, ("a", None, True))
    with pytest.raises(ArgumentError, match="expected 'a'\\.$"):
        checks.check_choice("kind", "b", ("a",))


def test_callables_instances_and_text():
    assert checks.check_callable("f", len, "a function") is len
    with pytest.raises(ArgumentError, match="^f=None cannot be called; expected a function"):
        checks.check_callable("f", None, "a function")
    assert checks.check_instance("d", 1, int, "a number") == 1
    with pytest.raises(ArgumentError, match="^d is the class int; expected a number"):
        checks.check_instance("d", int, int, "a number")
    assert checks.check_text("t", "a") == "a"
    with pytest.raises(ArgumentError, match="^t is 3; expected a text"):
        checks.check_text("t", 3)


def test_what_was_found_is_shown_shortly():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert checks.shown(torch.zeros(3)) == "a tensor of shape (3,) and type torch.float32"
    assert checks.shown(Broken()) == "a Broken"
    assert len(checks.shown(list(range(1000)))) < 80


def test_seeds_and_shapes():
    assert checks.check_seed("seed", np.int64(0)) == 0
    for value in [-1, 2**32, True, None, "abc", 0.0]:
        with pytest.raises(ArgumentError, match=r"^seed=.*expected an integer >= 0 .*\(a seed\)"):
            checks.check_seed("seed", value)
    assert checks.check_shape("shape", 3) == checks.check_shape("shape", [3]) == torch.Size([3])
    assert checks.check_shape("shape", ()) == torch.Size()
    for value in ["3", None, (-1,), (1.0,)]:
        with pytest.raises(ArgumentError, match="^shape"):
            checks.check_shape("shape", value)


def test_numbers_that_may_be_infinite():
    assert checks.check_number("x", -math.inf, finite=False) == -math.inf
    assert math.isnan(checks.check_number("x", math.nan, finite=False))
    assert checks.check_number("x", 10**400, finite=False) == math.inf
    for value in [None, "nan", True, 1j]:
        with pytest.raises(ArgumentError, match="^x=.*expected a number\\."):
            checks.check_number("x", value, finite=False)
    with pytest.raises(ArgumentError, match="^x=a int, 1"):
        checks.check_number("x", 10**400)
    with pytest.raises(ArgumentError, match="^n=a int, 1"):
        checks.check_count("n", 10**400)


def test_tensors():
    x = torch.ones(2, 3)
    assert checks.check_tensor("x", x, dim=2) is x
    assert checks.check_tensor("x", torch.ones(2, dtype=torch.long)).dtype == torch.long
    for value in [None, 3.0, [1.0], np.ones(3)]:
        with pytest.raises(ArgumentError, match="^x is .*; expected a tensor"):
            checks.check_tensor("x", value)
    for dtype in (torch.bool, torch.complex64):
        with pytest.raises(ArgumentError, match="^x is of type .*; expected a tensor, of numbers"):
            checks.check_tensor("x", torch.ones(2, dtype=dtype))
    with pytest.raises(ArgumentError, match="^x has entries that are NaN or infinite"):
        checks.check_tensor("x", torch.tensor([1.0, math.nan]))
    with pytest.raises(ShapeError, match=r"^x has shape \(2, 3\); expected a tensor"):
        checks.check_tensor("x", x, dim=3)


def test_tensors_by_name():
    found = {"a": torch.ones(2)}
    assert checks.check_tensors("draws", found, "draws by site") is found
    for value in [None, [torch.ones(2)], {1: torch.ones(2)}, {"a": 1.0}]:
        with pytest.raises(ArgumentError, match="^draws"):
            checks.check_tensors("draws", value, "draws by site")


def test_names():
    assert checks.check_names("sites", ["a", "b"]) == ("a", "b")
    assert checks.check_names("sites", (n for n in "ab")) == ("a", "b")
    for value in ["ab", None, [1], {"a": 1}, torch.ones(2), np.array(3)]:
        with pytest.raises(ArgumentError, match="^sites=.*expected several names, such as"):
            checks.check_names("sites", value)


def test_models_and_guides():
    assert checks.check_model(len) is len and checks.check_guide(len) is len
    with pytest.raises(ArgumentError, match="^model=None cannot be called; expected a Pyro model"):
        checks.check_model(None)
    with pytest.raises(ArgumentError, match="^guide is the class int; expected an instance of it"):
        checks.check_guide(int)
    for data in (torch.zeros(3), np.zeros(2), None):  # fit(model, x, y)
        with pytest.raises(ArgumentError, match="a guide, between the model and its arguments, su"):
            checks.check_guide(data)
    with pytest.raises(ArgumentError, match="^prior=3 cannot be called"):
        checks.check_model(3, "prior")


def test_states():
    assert checks.check_state(checks, {}) == {}
    for value in [None, [1], {1: 2}, torch.ones(2)]:
        with pytest.raises(StateError, match="^not a state of Fraction: .*state_dict"):
            checks.check_state(Fraction(1), value)
