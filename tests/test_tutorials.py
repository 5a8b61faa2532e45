"""Every tutorial runs from top to bottom, in its short mode, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.notebooks import in_a_copy

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
ENVIRONMENT = os.environ | {
    "CI": "true",
    "MPLBACKEND": "Agg",
    "PYTHONPATH": str(ROOT),  # notebooks find benchmarks/ beside them; here they run elsewhere
}
KERNEL = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
"""
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_tutorials() -> None:
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        assert "smoke_test" in notebook.read_text(), "a tutorial has a short mode"


@each_notebook
def test_outputs_name_no_place_of_a_machine(notebook: Path) -> None:
    """Warnings that are kept as they were shown begin with the path of an installation."""
    assert "site-packages" not in notebook.read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, Path], str | None]]:
    """Imports once, and then runs a notebook in a folder: says what went wrong."""
    pytest.importorskip("IPython", reason="tutorials need the extra 'test'")
    home = {"IPYTHONDIR": str(tmp_path_factory.mktemp("ipython"))}
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "notebooks.py")],
        env=ENVIRONMENT | home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        def run(notebook: Path, folder: Path) -> str | None:
            print(json.dumps([str(notebook), str(folder)]), file=stdin, flush=True)
            return json.loads(stdout.readline())

        yield run
        stdin.close()


@pytest.mark.program
@each_notebook
def test_tutorial_runs(run: Callable[[Path, Path], str | None], notebook: Path, tmp_path) -> None:
    assert run(notebook, tmp_path) is None


@pytest.mark.slow
@each_notebook
def test_tutorial_runs_in_a_kernel(notebook: Path, tmp_path: Path) -> None:
    """With imports, messages and displays as its reader has them."""
    pytest.importorskip("nbclient", reason="tutorials need the extra 'test'")
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, str(notebook)],
        cwd=tmp_path,
        env=ENVIRONMENT | {"IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def bad_notebook(folder: Path) -> Path:
    cells = [
        {"cell_type": "code", "source": ["print('said')\n", "1"]},
        {"cell_type": "markdown", "source": ["no code"]},
        {"cell_type": "code", "source": ["raise ValueError('told')"]},
    ]
    path = folder / "bad.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_a_cell_that_fails_fails_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of this process, which has imported most of it."""
    pytest.importorskip("IPython", reason="tutorials need the extra 'test'")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    error = in_a_copy(str(bad_notebook(tmp_path)), str(tmp_path))
    assert error is not None and error.endswith("ValueError: told\n")


@pytest.mark.program
def test_a_cell_that_fails_is_told_by_the_other_process(
    run: Callable[[Path, Path], str | None], tmp_path: Path
) -> None:
    error = run(bad_notebook(tmp_path), tmp_path)
    assert error is not None and error.endswith("ValueError: told\n")
