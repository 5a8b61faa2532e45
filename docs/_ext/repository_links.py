"""Links between files of the repository, which become links between pages of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gathered_pages import PAGES, ROOT
from sphinx.application import Sphinx

ORIGINS = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(!?)\[([^\]\[]*)\]\((?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")


def translate(text: str, docname: str) -> str:
    """
    What a page of the site says in the place of links of the file that it comes from.

    Links to pages are written from the root of the site; those to folders and to other files of the
    repository become plain text, as there is no page for them.
    """
    here = Path(ORIGINS.get(docname, f"docs/{docname}.md")).parent

    def one(match: re.Match[str]) -> str:
        is_image, words, link, place = match.groups()
        target = os.path.normpath(here / link)
        docs_page = re.fullmatch(r"docs/(.*)\.md", target)
        page = docs_page[1] if docs_page else PAGES.get(target)
        if page:
            ending = ".ipynb" if target.endswith(".ipynb") else ".md"
            return f"{is_image}[{words}](/{page}{ending}{place or ''})"
        if target.endswith(".png"):
            picture = os.path.relpath(target, Path("docs", docname).parent)
            return f"{is_image}[{words}]({picture})"
        return words if (ROOT / target).exists() else match[0]

    return LINK.sub(one, text)


def read(app: Sphinx, docname: str, content: list[str]) -> None:
    """See ``source-read`` of Sphinx."""
    if docname in ORIGINS or docname.startswith("results/"):
        content[0] = translate(content[0], docname)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tells Sphinx of it."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
