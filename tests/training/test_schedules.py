"""Schedules as functions of the step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training import geometric_schedule, linear_schedule

positive = st.floats(1e-3, 1e3)


@given(positive, positive, st.integers(1, 1000))
@pytest.mark.parametrize("make", [linear_schedule, geometric_schedule])
def test_ends_are_exact_and_stay(make, start, end, num_steps):
    value = make(start, end, num_steps)
    assert value(0) == start
    assert value(num_steps) == value(num_steps + 7) == end


@given(positive, positive, st.integers(1, 500))
def test_halfway_lies_the_mean(start, end, half):
    assert math.isclose(linear_schedule(start, end, 2 * half)(half), (start + end) / 2)
    assert math.isclose(geometric_schedule(start, end, 2 * half)(half), math.sqrt(start * end))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (linear_schedule, (0.0, math.inf, 5), "end=inf; expected a finite number"),
        (linear_schedule, (math.nan, 1.0, 5), "start=nan; expected a finite number"),
        (geometric_schedule, (0.0, 1.0, 5), "start=0.0; expected a finite number > 0"),
        (linear_schedule, (0.0, 1.0, 0), "num_steps=0; expected an integer >= 1"),
        (geometric_schedule, (1.0, 0.1, 2.5), "num_steps=2.5; expected an integer >= 1"),
    ],
)
def test_bad_arguments(make, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        make(*arguments)
