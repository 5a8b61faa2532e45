"""What tables of benchmarks are made with."""

from __future__ import annotations

import math

import pytest

from benchmarks.common import mean_and_error


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5], "1.50"),
        ([1.0, 2.0], "1.50 ± 0.50"),
        ([1.0, math.inf], "inf"),  # a label that no draw gives any probability
        ([math.inf], "inf"),
        ([1.0, math.nan], "nan"),
    ],
)
def test_an_error_is_that_of_several_finite_numbers(values: list[float], expected: str) -> None:
    assert mean_and_error(values, ".2f") == expected
