"""The package is typed for those who use it: a program of theirs passes the strict checker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests import typed_program

ROOT = Path(__file__).resolve().parents[1]


def check_strictly(folder: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """Checks a copy of the program with the package that lies in ``place``, as if installed."""
    shutil.copy(ROOT / "tests" / "typed_program.py", folder)
    config = folder / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n")
    command = ["-m", "mypy", "--config-file", str(config), "--cache-dir", str(folder / "cache")]
    return subprocess.run(
        [sys.executable, *command, "typed_program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(place), "MYPYPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_it_runs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these fits are no fits
        data = typed_program.main(num_steps=2, num_samples=4)
    assert data["posterior"].sizes["restart"] == 2
    assert len(typed_program.guides()) == 5 and len(typed_program.objectives()) == 4


@pytest.mark.slow
def test_it_passes_the_strict_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    done = check_strictly(tmp_path, ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_its_mistakes_are_found_by_the_types_of_the_package_alone(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    place = tmp_path / "untyped"
    shutil.copytree(ROOT / "pyro_implicit", place / "pyro_implicit", dirs_exist_ok=True)
    (place / "pyro_implicit" / "py.typed").unlink()
    done = check_strictly(tmp_path, place)
    assert done.returncode == 1
    assert "missing library stubs or py.typed marker" in done.stdout
    mistakes = (ROOT / "tests" / "typed_program.py").read_text().count("  # type: ignore[")
    assert done.stdout.count('Unused "type: ignore" comment') == mistakes > 5
