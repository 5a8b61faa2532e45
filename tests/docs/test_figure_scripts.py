"""The figures of the documentation are drawn by the scripts that are said to draw them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib import pyplot as plt

from pyro_implicit import fit
from tests.docs.pages import DOCS

FIGURES = DOCS / "figures"


def loaded(name: str) -> ModuleType:
    """A script of the documentation, which is not on the path."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """Draws all figures of a script, fits of three steps, and tells which there are."""

    def draw(name: str) -> set[str]:
        plt.switch_backend("agg")
        for one in dict.fromkeys(("bad_fits", name)):
            monkeypatch.setitem(sys.modules, one, loaded(one))
        script = sys.modules[name]
        monkeypatch.setattr(sys.modules["bad_fits"], "FIGURES", tmp_path)
        monkeypatch.setattr(script, "fit", partial(short, fit), raising=False)
        for one in script.ALL.values():
            one()
        return {path.name for path in tmp_path.iterdir()}

    return draw


def short(fit: Callable[..., Any], *args: Any, num_steps: int, **options: Any) -> Any:
    """A fit of three steps."""
    return fit(*args, num_steps=3, **options)


@pytest.mark.program
@pytest.mark.filterwarnings("ignore::UserWarning")  # bad fits are told
@pytest.mark.parametrize("name", ["bad_fits", "theory_figures"])
def test_scripts_draw_figures_that_are_kept(
    name: str, drawn: Callable[[str], set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = drawn(name)
    assert found and found <= {path.name for path in FIGURES.iterdir()}
