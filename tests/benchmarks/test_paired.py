"""Paired differences: what is compared with what, against a search through all rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shared.paired import ahead, pairs

PLACES = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["x", "y", "base"]))


def _rows(places: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [
        {"set": name, "seed": seed, "method": method, "number": number}
        for number, (name, seed, method) in enumerate(places)
    ]


@pytest.mark.long
@given(st.lists(PLACES, unique=True))
def test_each_row_is_beside_the_base_of_its_own_data(places: list[tuple[str, int, str]]) -> None:
    rows = _rows(places)
    found = [
        (*names, row["number"], other["number"])
        for names, both in pairs(rows, "base", group="set")
        for row, other in both
    ]
    expected = [
        (row["set"], row["method"], row["number"], other["number"])
        for row in rows
        for other in rows
        if row["method"] != "base" == other["method"]
        and (row["set"], row["seed"]) == (other["set"], other["seed"])
    ]
    assert sorted(found) == sorted(expected)


@pytest.mark.long
@given(st.lists(PLACES, unique=True))
def test_groups_and_methods_come_in_the_order_of_the_rows(
    places: list[tuple[str, int, str]],
) -> None:
    rows = _rows(places)
    names = [names for names, _ in pairs(rows, "base", group="set")]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    assert [name for name, _ in names] == sorted((one for one, _ in names), key=sets.index)
    for name in sets:
        methods = list(dict.fromkeys(row["method"] for row in rows if row["set"] == name))
        own = [method for one, method in names if one == name]
        assert own == sorted(own, key=methods.index)


def test_without_groups_rows_of_one_seed_are_paired() -> None:
    rows = _rows([("a", 0, "base"), ("a", 0, "x"), ("a", 1, "x"), ("a", 2, "base")])
    ((names, both),) = pairs(rows, "base")
    assert names == ["x"] and [(a["number"], b["number"]) for a, b in both] == [(1, 0)]


def test_who_is_ahead() -> None:
    assert ahead([0.1, 0.0, -2.0]) == "1 of 3"
