"""The suite kills every mutant of the package in ``mutants.py``, and only those."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


def contract(mutant: str | None) -> subprocess.CompletedProcess[str]:
    """The tests of weights, in a process of its own, with a fault in the package or without."""
    env = {k: v for k, v in os.environ.items() if k != "PYRO_IMPLICIT_MUTANT"}
    if mutant is not None:
        env["PYRO_IMPLICIT_MUTANT"] = mutant
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "tests.contract.mutants"]
        + ["-p", "no:cacheprovider", "tests/contract/test_weights.py"],
        cwd=ROOT,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_contract_kills(mutant: str) -> None:
    result = contract(mutant)
    assert result.returncode == 1, result.stdout[-2000:]  # tests ran, and one failed
    assert "FAILED tests/contract/test_weights.py::" in result.stdout


@pytest.mark.slow
def test_the_contract_spares_the_package_itself() -> None:
    result = contract(None)
    assert result.returncode == 0, result.stdout[-2000:]
