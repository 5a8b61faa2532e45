"""Products of parameters, of which the default run takes half."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def in_turns(*lists: Iterable[Any]) -> list[Any]:
    """
    All combinations for ``parametrize``: those whose places add up to an even number by default,
    the others under ``slow``.

    Each value is in the default run, and of three lists or more each pair of values.
    """
    rows = []
    for places in product(*(list(enumerate(values)) for values in lists)):
        turn = sum(place for place, _ in places) % 2
        marks = [pytest.mark.slow] if turn else []
        rows.append(pytest.param(*(value for _, value in places), marks=marks))
    return rows
