"""Pictures that notebooks show on the site say what is on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def pictures(cell: dict[str, Any]) -> int:
    """How many pictures the outputs of a cell have."""
    shown = [output.get("data", {}) for output in cell.get("outputs", [])]
    return sum(any(kind.startswith("image/") for kind in data) for data in shown)


def faults_of(notebook: dict[str, Any]) -> Iterator[str]:
    """Cells whose picture has no words, as MyST-NB reads them, or whose words have no picture."""
    for number, cell in enumerate(notebook["cells"]):
        words = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
        if pictures(cell) and len(words) < 40:
            yield f"cell {number}: write what the picture shows in mystnb.image.alt of its metadata"
        if words and not pictures(cell):
            yield f"cell {number} has an alternative text and no picture"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_have_alternative_texts(path: Path) -> None:
    assert not list(faults_of(json.loads(path.read_text())))


def test_there_are_pictures() -> None:
    cells = [cell for path in NOTEBOOKS for cell in json.loads(path.read_text())["cells"]]
    assert sum(map(pictures, cells)) > 20


def test_faults_are_told() -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "", "text/plain": ""}}
    alt = {"mystnb": {"image": {"alt": "Two curves that fall and meet at the end of training."}}}
    cells = [
        {"metadata": {}, "outputs": [picture]},
        {"metadata": alt, "outputs": [picture]},
        {"metadata": alt},
    ]
    assert [fault[:6] for fault in faults_of({"cells": cells})] == ["cell 0", "cell 2"]
