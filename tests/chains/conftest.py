"""Short runs: recording a graph takes longer than it saves, unless many runs share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor

from pyro_implicit.ops.graphs.recording import record
from tests.chains.models import X, Y, line

_GRAPHS: dict[Any, Any] = {}


def _shared(function: Any, u: Tensor) -> Callable[..., Any] | None:
    """The graph of the line's density, recorded once for each shape; none for other models."""
    found = function.__self__.log_joint
    same = found.model is line and len(found.args) == 2 and not found.kwargs
    if not same or found.args[0] is not X or found.args[1] is not Y or len(u) != 3:
        return None
    if u.dtype not in _GRAPHS:
        _GRAPHS[u.dtype] = record(function, u)
    return _GRAPHS[u.dtype]


@pytest.fixture(autouse=True, scope="module")
def recorded_once() -> Iterator[None]:
    """
    Only where it is looked at, and in long runs, are all densities recorded.

    By module: without ``__init__.py`` pytest knows no packages, and what is set for one stays.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_implicit.chains.density.record", _shared)
        yield


@pytest.fixture(autouse=True)
def recorded_as_it_is(request: pytest.FixtureRequest) -> Iterator[None]:
    """The real thing, for those tests."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("slow") or "recorded" in request.node.name:
            patch.setattr("pyro_implicit.chains.density.record", record)
        yield
