"""One spelling in what is read as prose: pages, notebooks, files at the root and docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_links import FILES, text_of

#: what is written, as a pattern of whole words, and what is read here
SPELLINGS = {
    r"\w*iz(?:e|ed|es|er|ers|ing|ation|ations)": "-ise, -isation",
    r"\w*yz(?:e|ed|es|er|ing)": "-yse",
    r"behavior\w*|color\w*|favor\w*|neighbor\w*": "-our",
    r"center(?:ed|s)?": "centre",
    r"model(?:ing|ed)|label(?:ing|ed)": "two l",
    r"gray\w*": "grey",
    r"mini-batch\w*": "minibatch",
    r"hyper-parameter\w*": "hyperparameter",
    r"(?:data-?set)s?": "data set",
    r"auto-guides?": "autoguide",
    r"check-points?": "checkpoint",
}
SIZES = re.compile(r"(?:over|under|down|up|re|cap)?siz|(?:priz|seiz)", re.IGNORECASE)
MODULES = sorted((ROOT / "pyro_implicit").rglob("*.py"))


def misspelt(text: str) -> Iterator[str]:
    """Words that are spelt otherwise here. A part of a name (a dot, a low line) is none of them."""
    for pattern, wanted in SPELLINGS.items():
        for match in re.finditer(rf"(?<![\w.-])(?:{pattern})(?![\w(=])", text, re.IGNORECASE):
            if not SIZES.match(match[0]):
                yield f"{match[0]} ({wanted})"


def words_of(page: Path) -> str:
    """A page or a notebook without code and without the addresses of its links."""
    prose = re.sub(r"^(```+).*?^\1", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)\s]*\)|https?://\S+", "", prose)


def docstrings_of(module: Path) -> str:
    """The docstrings of a module without code, roles, titles of papers and names of fields."""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.walk(ast.parse(module.read_text()))
    text = "\n".join(ast.get_docstring(node) or "" for node in tree if isinstance(node, nodes))
    text = re.sub(r"::\n(?:\n|[ ]{4}.*(?:\n|\Z))+", "\n", text)
    return re.sub(r"`+[^`]*`+|^:\w+[^:\n]*:", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", FILES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages(page: Path) -> None:
    assert not list(misspelt(words_of(page)))


@pytest.mark.long
def test_docstrings() -> None:
    found = {
        module.relative_to(ROOT).as_posix(): words
        for module in MODULES
        if (words := list(misspelt(docstrings_of(module))))
    }
    assert not found


def test_what_is_spelt_otherwise_is_told() -> None:
    text = (
        "An Optimizer of vectorized datasets, resized; pyro.optim.Optimizer, vectorize_particles="
    )
    assert list(misspelt(text)) == [
        "Optimizer (-ise, -isation)",
        "vectorized (-ise, -isation)",
        "datasets (data set)",
    ]
    assert not list(misspelt("one size, a prize, colour, optimiser, analysed, modelled, data sets"))


def test_code_is_no_prose(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("`vectorize` [a](color.md)\n\n```python\ncolor = 1\n```\n\nA flavor.\n")
    assert "flavor" in words_of(page) and not re.search("color|vectorize", words_of(page))
    module.write_text(
        '"""Behavior of ``color``.\n\n:param int color: one.\n\nExample::\n\n    color = 1\n"""'
    )
    assert list(misspelt(docstrings_of(module))) == ["Behavior (-our)"]
