"""Names in messages: a few of many."""

from __future__ import annotations

import pytest

from pyro_implicit._few import few_of


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more"), (7, "a, b, c and 4 more")],
)
def test_a_few_are_shown_and_the_others_counted(count: int, expected: str) -> None:
    assert few_of(list("abcdefg"[:count])) == expected
    assert few_of(["x", "y"], 1) == "x and 1 more"
