"""What the tests of recorded steps share."""

from __future__ import annotations

import pytest


@pytest.fixture
def slow_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says, recorded steps are faster."""
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_RELATIVE_STEP_TIME", 1e9)
