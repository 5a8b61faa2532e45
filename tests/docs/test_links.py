"""Links and pictures of pages, notebooks and the files at the root lead somewhere and say what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT

FILES = [
    *PAGES,
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("benchmarks/*.md")),
    *sorted(ROOT.glob("tutorials/*.ipynb")),
]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def text_of(path: Path) -> str:
    """What is written in a page or in the words of a notebook, without code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    text = re.sub(r"^```([^\n]*)\n.*?^```$", _block, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", "", text)


def _block(match: re.Match[str]) -> str:
    """Directives are read; equations and code are not."""
    return match[0] if match[1].startswith("{") and match[1] != "{math}" else ""


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page."""
    titles = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    named = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles} | {
        *named
    }


def faults_of(path: Path, text: str) -> Iterator[str]:
    for is_image, words, link in LINK.findall(text):
        if is_image and len(words) < 10:
            yield f"the picture {link} has no alternative text"
        if re.match(r"\w+:", link):
            continue
        target, _, place = link.partition("#")
        file = (path.parent / target) if target else path
        if file.suffix == ".ipynb" and file.resolve().parent == DOCS / "tutorials":
            file = ROOT / "tutorials" / file.name  # the site copies them when it is built
        if not file.exists() and file.name not in ("index.md",):
            yield f"{link} leads nowhere"
        elif place and file.suffix == ".md" and file.exists():
            if place not in anchors(file.read_text()):
                yield f"{link} has no such heading"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links(path: Path) -> None:
    faults = list(faults_of(path, text_of(path)))
    assert not faults, "\n".join(faults)


def test_faults_are_told() -> None:
    text = "[a](absent.md) [b](start.md#absent) ![x](index.md) [ok](start.md#install)"
    told = list(faults_of(DOCS / "index.md", text))
    assert [fault.split(" ", 1)[0] for fault in told] == ["absent.md", "start.md#absent", "the"]


def test_words_between_equations_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```{math}\na\n```\n[between](x.md)\n```{math}\n[b](c)\n```\n[after](y.md)\n")
    assert [link for _, _, link in LINK.findall(text_of(page))] == ["x.md", "y.md"]


def test_every_page_is_in_the_tables_of_contents() -> None:
    listed = set()
    for path in PAGES:
        for table in re.findall(r"^```\{toctree\}\n(.*?)^```", path.read_text(), re.DOTALL | re.M):
            for line in table.splitlines():
                if line and not line.startswith(":"):
                    listed.add((path.parent / line).relative_to(DOCS).as_posix())
    for path in PAGES:
        name = path.relative_to(DOCS).with_suffix("").as_posix()
        told = name == "index" or any(fnmatch(name, one) for one in listed)
        assert told, f"{name} is in no table of contents"


def test_every_notebook_is_on_the_page_of_tutorials() -> None:
    page = (DOCS / "tutorials" / "index.md").read_text()
    for path in ROOT.glob("tutorials/*.ipynb"):
        assert f"]({path.name})" in page, f"{path.stem} is in no table"
        assert f"\n{path.stem}\n" in page, f"{path.stem} is in no table of contents"
