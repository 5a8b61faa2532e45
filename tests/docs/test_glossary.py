"""The glossary: sorted, linked from where its terms come first, and every link to a term of it."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, PAGES, name_of

LINK = re.compile(r"\{term\}`([^`<]+?)(?:\s*<([^>]+)>)?`")
#: where a new reader begins, and where terms are derived
READ_FIRST = [
    page
    for page in PAGES
    if re.fullmatch(r"(start|choose|theory/(?!glossary).*)\.md", name_of(page))
]


def entries() -> list[str]:
    text = (DOCS / "theory" / "glossary.md").read_text()
    block = re.search(r"^```\{glossary\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    return re.findall(r"^(\S.*)$", block[1], re.MULTILINE)


def links(text: str) -> set[str]:
    """Terms that a page points at."""
    return {target or words for words, target in LINK.findall(text)}


def test_entries_are_sorted_and_told_once() -> None:
    assert entries() == sorted(set(entries()))
    assert len(entries()) > 25


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_entries(page) -> None:
    assert links(page.read_text()) <= set(entries())


def test_every_entry_is_linked_from_a_page_that_is_read_first() -> None:
    assert len(READ_FIRST) > 8
    linked = set().union(*(links(page.read_text()) for page in READ_FIRST))
    assert not set(entries()) - linked


def test_links_are_found() -> None:
    assert links("a {term}`latents <latent>`, {term}`row` and `{term}`") == {"latent", "row"}
