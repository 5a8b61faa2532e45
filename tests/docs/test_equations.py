"""Equations that comments name are on the page of the theory that they name, each once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

THEORY = sorted((DOCS / "theory").glob("*.md"))
CITED = re.compile(r"theory/(\w+\.md) \(([a-z0-9, -]+)\)")


def labels_of(path: Path) -> list[str]:
    """The labels of the equations of a page."""
    return re.findall(r"^:label: +(\S+)$", path.read_text(), re.MULTILINE)


LABELS = {path.name: labels_of(path) for path in THEORY}


def faults_of(code: str) -> Iterator[str]:
    """What is wrong with the equations that comments name."""
    named = CITED.findall(code)
    if len(named) != code.count("theory/"):
        yield "an equation is named as theory/page.md (label), or (label, label)"
    for page, labels in named:
        for label in labels.split(", "):
            if label not in LABELS.get(page, []):
                yield f"theory/{page} has no equation {label}"


SOURCES = [
    path for path in sorted((ROOT / "pyro_implicit").rglob("*.py")) if "theory/" in path.read_text()
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_cited_equations_are_there(path: Path) -> None:
    faults = list(faults_of(path.read_text()))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", ["lanczos", "lobpcg", "inversion", "density_ratio"])
def test_algorithms_name_their_equations(name: str) -> None:
    code = (ROOT / "pyro_implicit" / "ops" / f"{name}.py").read_text()
    assert len(CITED.findall(code)) >= 4


def test_labels_are_unique() -> None:
    every = [label for labels in LABELS.values() for label in labels]
    assert len(every) == len(set(every)) > 40


def test_pages_refer_to_equations_that_are_there() -> None:
    every = {label for labels in LABELS.values() for label in labels}
    for path in THEORY:
        missing = set(re.findall(r"\{eq\}`([^`]+)`", path.read_text())) - every
        assert not missing, f"{path.name}: {missing}"


def test_faults_are_told() -> None:
    code = "# theory/linearised.md (gauss-rule, absent)\n# theory/linearised, gauss-rule\n"
    told = list(faults_of(code))
    assert told[0].startswith("an equation is named as")
    assert told[1] == "theory/linearised.md has no equation absent"
