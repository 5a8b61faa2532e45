"""
The suite's parameters: a test that asks for a guide, an objective or a model gets them all.

One that asks for all three gets a **Latin square** of them in the default run: every guide with
every objective once, on models taken in turns, so that every guide meets every model and every
objective does. ``pytest -m slow`` runs all other triples.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.contract.registry import GUIDES, MODELS, OBJECTIVES, ROW_GUIDES, ROW_MODELS

#: in the order of a test's name; guides and models of rows have tests of their own
LISTS: dict[str, dict[str, Any]] = {
    "make_guide": GUIDES,
    "make_row_guide": ROW_GUIDES,
    "make_objective": OBJECTIVES,
    "case": MODELS,
    "row_case": ROW_MODELS,
}


def pytest_collection_modifyitems(items):
    """Starts by curvature are bad ones for some of these models: they say so, which is right."""
    told = pytest.mark.filterwarnings("ignore:init_from='laplace' starts with a loss:UserWarning")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(told)


def pytest_generate_tests(metafunc):
    names = [name for name in LISTS if name in metafunc.fixturenames]
    if not names:
        return
    rows = []
    for keys in product(*(LISTS[name] for name in names)):
        marks = [] if len(names) < 3 or in_square(names, keys) else [pytest.mark.slow]
        rows.append(pytest.param(*values(names, keys), id="-".join(keys), marks=marks))
    metafunc.parametrize(names, rows)


def in_square(names: list[str], keys: tuple[str, ...]) -> bool:
    """Whether the default run takes this triple."""
    guide, objective, model = (
        list(LISTS[name]).index(key) for name, key in zip(names, keys, strict=True)
    )
    return (guide + objective) % len(LISTS[names[-1]]) == model


def values(names: list[str], keys: tuple[str, ...]) -> list[Any]:
    """What the keys stand for; a guide with what the objective needs of it."""
    found = {name: LISTS[name][key] for name, key in zip(names, keys, strict=True)}
    if "make_objective" in found:
        for name in {"make_guide", "make_row_guide"} & found.keys():
            found[name] = partial(found[name], **found["make_objective"].guide_options)
    return [found[name] for name in names]
