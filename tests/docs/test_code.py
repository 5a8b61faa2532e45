"""Every block of Python on a page of the site runs, one after the other, as a reader would."""

from __future__ import annotations

import types
import warnings
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import pyro_implicit
from tests.docs.pages import PAGES, code_of, name_of

WITH_CODE = [path for path in PAGES if code_of(path)]
each_page = pytest.mark.parametrize("page", WITH_CODE, ids=name_of)


def run(page: Path) -> None:
    module = types.ModuleType("page")
    for code in code_of(page):
        exec(compile(code, str(page), "exec"), module.__dict__)


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of a few steps from a bare start, chains of none: whether code runs, not how it fits."""
    for name, steps in (("fit", 3), ("refine", 0)):
        full = getattr(pyro_implicit, name)

        @wraps(full)
        def short(*args: Any, full: Any = full, steps: int = steps, **options: Any) -> Any:
            return full(*args, **options | {"num_steps": steps, "progress": False})

        monkeypatch.setattr(pyro_implicit, name, short)


@pytest.mark.long
@each_page
def test_code_runs(page: Path, short_fits: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three steps are not enough, and things say so
        run(page)


@pytest.mark.slow
@pytest.mark.automatic_start
@each_page
def test_code_runs_in_full(page: Path) -> None:
    run(page)


def test_pages_have_code() -> None:
    assert len(WITH_CODE) >= 8
