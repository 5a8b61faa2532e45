"""Annealed: the ends, the way between them, and what is saved."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training import Annealed

POSITIVE = st.floats(1e-3, 1e3)


@given(
    start=POSITIVE,
    end=POSITIVE,
    num_steps=st.integers(1, 20),
    kind=st.sampled_from(["geometric", "linear"]),
)
def test_it_goes_from_one_end_to_the_other_in_equal_steps(start, end, num_steps, kind) -> None:
    value = Annealed(start, end, num_steps, kind=kind)
    path = [value(), *(value.step() for _ in range(num_steps + 3))]
    assert path[0] == pytest.approx(start)
    assert path[num_steps:] == [end] * 4
    scale = math.log if kind == "geometric" else float
    steps = [scale(b) - scale(a) for a, b in zip(path[:num_steps], path[1:], strict=False)]
    assert steps == pytest.approx([(scale(end) - scale(start)) / num_steps] * num_steps, abs=1e-9)


def test_a_state_dict_goes_on_where_it_was() -> None:
    first, second = Annealed(1.0, 0.1, 10), Annealed(1.0, 0.1, 10)
    for _ in range(4):
        first.step()
    second.load_state_dict(first.state_dict())
    assert second() == first()
    assert "1.0, 0.1, num_steps=10, kind='geometric'" in repr(first)
    assert torch.equal(first.num_taken, torch.tensor(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 5), "start=0.0; expected a finite number > 0"),
        ((1.0, -1.0, 5), "end=-1.0; expected a finite number > 0"),
        ((1.0, math.inf, 5), "end=inf; expected a finite number > 0"),
        ((1.0, 0.1, 0), "num_steps=0; expected an integer"),
        ((1.0, 0.1, 2.5), "num_steps=2.5; expected an integer"),
        ((1.0, 0.1, True), "num_steps=True; expected an integer"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        Annealed(*arguments)
    with pytest.raises(ArgumentError, match="kind='cosine'"):
        Annealed(1.0, 0.1, 5, kind="cosine")
