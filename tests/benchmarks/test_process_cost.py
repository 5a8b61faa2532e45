"""Cost of an implicit process: the record, and that memory stays linear in the inputs."""

from __future__ import annotations

import pytest

from benchmarks.cost import process_cost


def test_the_slope_of_a_power() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert process_cost.slope(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
