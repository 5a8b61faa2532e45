"""The pages of the site that are written by hand, and their blocks of code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: copied in or generated when the site is built
GATHERED = {"results/index.md", "project/changelog.md", "project/contributing.md"}
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if path.relative_to(DOCS).as_posix() not in GATHERED and "_build" not in path.parts
)


def name_of(path: Path) -> str:
    """A page's path from the folder of the site."""
    return path.relative_to(DOCS).as_posix()


def code_of(path: Path) -> list[str]:
    """Blocks of Python on a page, each at its own line, so that a traceback tells the place."""
    text = path.read_text()
    return [
        "\n" * text[: match.start(1)].count("\n") + match[1]
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
