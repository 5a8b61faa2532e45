"""Runs of a second or less: recording a graph takes longer than it saves here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def unrecorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only where it is looked at, and in long runs, are densities recorded."""
    recorded = request.node.get_closest_marker("slow") or "recorded" in request.node.name
    with pytest.MonkeyPatch.context() as patch:
        if not recorded:
            patch.setattr("pyro_implicit.chains.density.record", lambda function, u: None)
        yield
