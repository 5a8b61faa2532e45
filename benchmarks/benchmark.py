"""The declaration of a benchmark: what it asks, what it tells, and how it is run in short."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.records import FOLDER

__all__ = ["FIGURES", "Benchmark", "replaced"]

FIGURES = FOLDER.parent / "figures"


@dataclass(frozen=True)
class Benchmark:
    """
    One benchmark.

    :param str module: where its ``main`` and ``table`` are, below ``benchmarks``; the last part is
        its name.
    :param str question: what it is to answer.
    :param str rows: what one row of its record is.
    :param columns: keys of a row, and what they are.
    :param records: names of records, and the options that make them.
    :param str short: options for a run of seconds that tells nothing but that all works.
    :param short_settings: entries of the module's ``SETTINGS`` that a short run replaces.
    :param needs: data sets, as files below ``--data-root``.
    :param str extra: packages that must be there, with spaces between them.
    :param bool figure: it has the option ``--figure``; a record's is made with the record.
    """

    module: str
    question: str
    rows: str
    columns: Mapping[str, str]
    records: Mapping[str, str] = field(default_factory=dict)
    short: str = ""
    short_settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    extra: str = ""
    figure: bool = False

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.module.rpartition(".")[2]

    def load(self) -> ModuleType:
        """Its module, which may import a lot."""
        return import_module(f"benchmarks.{self.module}")

    def lacks(self, data_root: Path) -> str:
        """
        :param Path data_root: folder of the data sets.
        :returns: which packages or data sets are not there, and what to do; empty if all are.
        """
        packages = [name for name in self.extra.split() if find_spec(name) is None]
        if packages:
            return f'{", ".join(packages)} not installed: pip install -e ".[benchmarks]"'
        files = [name for name in self.needs if not (data_root / name).is_file()]
        return f"no {', '.join(files)} in {data_root}: see --data-root" if files else ""

    def run(
        self, argv: Sequence[str] = (), *, short: bool = False, record: str | None = None
    ) -> list[dict[str, Any]]:
        """
        Runs it in this process.

        :param argv: its own options, which win over those of ``short`` and ``record``.
        :param bool short: with its short settings.
        :param str record: with the options of that record, which is written.
        :returns: its rows.
        """
        options: list[str] = []
        if record is not None:
            options += [*shlex.split(self.records[record]), "--output", f"{FOLDER / record}.json"]
            options += ["--figure", f"{FIGURES / record}.png"] if self.figure else []
        if short:
            options += shlex.split(self.short)
        module = self.load()
        with replaced(getattr(module, "SETTINGS", {}), self.short_settings if short else {}):
            return module.main([*options, *argv])


@contextmanager
def replaced(settings: dict[str, Any], others: Mapping[str, Any]) -> Iterator[None]:
    """
    Other settings while the block lasts.

    :param dict settings: of a module.
    :param others: entries that are put in.
    """
    before = dict(settings)
    settings.update(others)
    try:
        yield
    finally:
        settings.clear()
        settings.update(before)
