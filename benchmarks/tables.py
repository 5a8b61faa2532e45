"""
The tables of the result pages, made from the records.

A page names a table where it stands, and what stands between the markers is written by
``python -m benchmarks tables``::

    <!-- table: uci_regression | columns: set; method; RMSE | set: energy -->
    <!-- end of table -->

The first word is the record; ``record.function`` calls another function of the benchmark's module
than ``table``. ``columns`` and any column's name choose columns and rows of the whole table.
``totals`` in a record's place is what all records cost (:mod:`benchmarks.totals`).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from benchmarks import totals
from benchmarks.common import format_table
from benchmarks.records import read_record
from benchmarks.registry import benchmark_of_record

__all__ = ["PAGES", "RESULTS", "fill", "render", "stale", "update"]

_ROOT = Path(__file__).resolve().parents[1]
_WRITTEN = "index.md"  # by a build of the site, from RESULTS.md
#: pages of results, whose tables are all made from records
RESULTS = (
    _ROOT / "benchmarks" / "RESULTS.md",
    *sorted(p for p in (_ROOT / "docs" / "results").glob("*.md") if p.name != _WRITTEN),
)
#: the same, and those that have other tables beside
PAGES = (*RESULTS, _ROOT / "docs" / "choose.md")
_MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<what>.*?) -->\n)(?P<body>.*?)(?P<end><!-- end of table -->)", re.S
)


def render(what: str) -> str:
    """
    :param str what: of a marker: record, columns and rows.
    :returns: the table as Markdown.
    """
    name, *choices = (part.strip() for part in what.split("|"))
    header, lines = _whole(name)
    kept = list(header)
    for choice in choices:
        column, _, text = choice.partition(": ")
        values = [value.strip() for value in text.split(";")]
        if column == "columns":
            kept = values
        else:
            lines = [line for line in lines if line[header.index(column)] in values]
    places = [header.index(column) for column in kept]
    return format_table(kept, [[line[place] for place in places] for line in lines])


@cache
def _whole(name: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a record's table."""
    record_name, _, function = name.partition(".")
    if name == "totals":
        return _split(totals.table())
    module = benchmark_of_record(record_name).load()
    return _split(getattr(module, function or "table")(read_record(record_name)["rows"]))


def _split(table: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a Markdown table."""
    header, _, *lines = (
        [cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
    )
    return header, lines


def fill(page: str) -> str:
    """
    :param str page: a page.
    :returns: the same with all its tables made anew.
    """
    return _MARKED.sub(lambda m: f"{m['begin']}{render(m['what'])}\n{m['end']}", page)


def stale() -> list[str]:
    """Places of the tables that are not what the records say."""
    return [
        f"{page.relative_to(_ROOT)}: {found['what']}"
        for page in PAGES
        for found in _MARKED.finditer(page.read_text(encoding="utf-8"))
        if found["body"] != render(found["what"]) + "\n"
    ]


def update() -> list[str]:
    """
    Writes all tables.

    :returns: the pages that have changed.
    """
    changed = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := fill(before)) != before:
            page.write_text(after, encoding="utf-8")
            changed.append(str(page.relative_to(_ROOT)))
    return changed
