"""Slopes are those of power laws, and a hint is told where it begins."""

from __future__ import annotations

import math

import pytest

from benchmarks.cost import growth


def rows(power: float, method: str = "guide") -> list[dict]:
    sizes = (10, 100, 1000, 10_000)
    told = dict.fromkeys(sizes, "") | {1000: "Too many. Write another.", 10_000: "More."}
    base = {"axis": "latents", "method": method}
    return [
        base | {"size": n, "ms": 5 + 0.1 * n**power if n == 10 else 0.1 * n**power, "told": told[n]}
        for n in sizes
    ]


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_slopes_are_of_large_sizes(power: float) -> None:
    assert growth.slope(rows(power)) == pytest.approx(power)
    assert math.isnan(growth.slope(rows(power)[:1]))


def test_the_table_tells_where_a_hint_begins() -> None:
    text = growth.table(rows(1.0) + rows(2.0, "other"))
    assert "from 1000 on: Too many" in text and "Write another" not in text
    assert "| 1.00  |" in text or "|  1.00 |" in text


def test_steps_of_many_draws_are_those_of_the_guides() -> None:
    jobs = growth.AXES["draws"](2)
    assert set(jobs) == {"default guide", "AutoNormal"}
    assert all(isinstance(job(), float) for job, _ in jobs.values())
