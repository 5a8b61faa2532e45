"""
The suite's parameters: a test that asks for a guide, an objective or a model gets them all.

In the default run each pair of guide and objective meets in one test at least: that of losses and
gradients takes a **Latin square**, every guide with every objective once, on models taken in turns,
so that every guide meets every model and every objective does. All other checks of pairs take
**turns**: ``@pytest.mark.turn(first, of=n)`` runs those whose numbers add up to ``first`` modulo
``n``. Each such check meets every guide, every objective and every model, and one with another
``first`` meets other pairs of them. A third parameter takes its values in turns, too.
``pytest -m slow`` runs all the rest: the full products.
"""

from __future__ import annotations

import copy
import pickle
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_implicit.guides import base
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart, gaussian_start
from pyro_implicit.handlers.log_joint import LogJoint
from tests.contract.registry import GUIDES, MODELS, OBJECTIVES, ROW_GUIDES, ROW_MODELS

#: in the order of a test's name; guides and models of rows have tests of their own
LISTS: dict[str, dict[str, Any]] = {
    "make_guide": GUIDES,
    "make_row_guide": ROW_GUIDES,
    "make_objective": OBJECTIVES,
    "case": MODELS,
    "row_case": ROW_MODELS,
    "local_params": {"global store": False, "module_local_params": True},
    "global_case": {name: case for name, case in MODELS.items() if not case.local},
    "copied": {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy},
    "float64": {name: name for name in ("before building", "after building", "before loading")},
}


_FOUND: dict[Any, GaussianStart] = {}


def _shared_start(
    kind: Any, log_joint: LogJoint, loc: Tensor, *, is_network: bool
) -> GaussianStart:
    """Densities that agree at two points are the same."""
    if not isinstance(kind, str):
        return gaussian_start(kind, log_joint, loc, is_network=is_network)
    with torch.no_grad():
        values = [float(log_joint.value(point)) for point in (loc, loc + 0.3)]
    key = (kind, loc.dtype, *loc.tolist(), *values)
    if key not in _FOUND:
        _FOUND[key] = gaussian_start(kind, log_joint, loc, is_network=is_network)
    return copy.deepcopy(_FOUND[key])


@pytest.fixture(autouse=True)
def a_start_is_sought_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Guides that begin as the Gaussian of the same posterior share its search.

    It takes longer than most tests here and has tests of its own, which run in the same process.
    """
    monkeypatch.setattr(base, "gaussian_start", _shared_start)


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
    turn = metafunc.definition.get_closest_marker("turn")
    rows = []
    for keys in product(*(LISTS[name] for name in names)):
        default = len(names) == 1 or in_default(names, keys, turn)
        marks = [] if default else [pytest.mark.slow]
        rows.append(pytest.param(*values(names, keys), id="-".join(keys), marks=marks))
    metafunc.parametrize(names, asked_for(rows, metafunc.config.getoption("markexpr")))


def asked_for(rows: list[Any], marks: str) -> list[Any]:
    """The rows that a run takes: one without slow tests need not make 5000 that it leaves out."""
    if not marks.startswith("not slow and"):
        return rows
    return [row for row in rows if not row.marks] or rows[:1]


def in_default(names: list[str], keys: tuple[str, ...], turn: pytest.Mark | None) -> bool:
    """Whether the default run takes these: in the square, or at this pair's turn."""
    lists = [list(LISTS[name]) for name in names]
    one, other, *third = (known.index(key) for known, key in zip(lists, keys, strict=True))
    if turn is None:
        return not third or (one + other) % len(lists[2]) == third[0]
    (first,), of = turn.args, turn.kwargs["of"]
    met = (one + other) % of == first
    return met and all(index == other % len(lists[2]) for index in third)


def values(names: list[str], keys: tuple[str, ...]) -> list[Any]:
    """What the keys stand for; a guide with what the objective needs of it."""
    found = {name: LISTS[name][key] for name, key in zip(names, keys, strict=True)}
    if "make_objective" in found:
        for name in {"make_guide", "make_row_guide"} & found.keys():
            found[name] = partial(found[name], **found["make_objective"].guide_options)
    return [found[name] for name in names]
