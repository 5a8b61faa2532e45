"""Every tutorial runs from top to bottom, in its short mode, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
"""


def test_there_are_tutorials() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="tutorials need the extra 'test'")
    assert "smoke_test" in notebook.read_text(), "a tutorial has a short mode"
    environment = os.environ | {
        "CI": "true",
        "MPLBACKEND": "Agg",
        "IPYTHONDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),  # notebooks find benchmarks/ beside them; here they run elsewhere
    }
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
