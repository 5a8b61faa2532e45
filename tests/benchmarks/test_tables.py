"""The tables of the result pages are those of the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import records, tables, totals
from benchmarks.__main__ import main
from benchmarks.common import format_table

ROWS = [{"set": "a", "RMSE": "1.5", "note": ""}, {"set": "b", "RMSE": "10", "note": "x ± 1"}]


@pytest.fixture()
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page, and a record of a benchmark that shows its rows as they are."""

    class MadeUp:
        @staticmethod
        def load() -> type[MadeUp]:
            return MadeUp

        @staticmethod
        def table(rows: list[dict[str, str]]) -> str:
            return format_table(list(rows[0]), [list(row.values()) for row in rows])

    (tmp_path / "made_up.json").write_text(json.dumps({"rows": ROWS}))
    monkeypatch.setattr(tables, "benchmark_of_record", lambda name: MadeUp)
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(tables, "PAGES", (tmp_path / "page.md",))
    monkeypatch.setattr(tables, "_ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text("Before\n\n<!-- table: made_up -->\nold\n<!-- end of table -->\nAfter\n")
    tables._whole.cache_clear()
    yield path
    tables._whole.cache_clear()


def test_a_recorded_command_has_no_paths() -> None:
    words = ["--seeds", "1", "--output", "a.json", "--figure=b.png", "--quiet", "--set=x y"]
    command = records._command("made_up", words)
    assert command == 'python -m benchmarks run made_up --seeds 1 "--set=x y"'


@pytest.mark.long
def test_the_pages_are_what_the_records_say() -> None:
    assert tables.stale() == [], "run: python -m benchmarks tables"


def test_all_records_are_shown_somewhere() -> None:
    text = "".join(page.read_text() for page in tables.PAGES)
    for path in records.FOLDER.glob("*.json"):
        assert f"<!-- table: {path.stem} " in text or f"<!-- table: {path.stem}." in text, path


def test_no_table_is_written_by_hand() -> None:
    for page in tables.RESULTS:
        left = tables._MARKED.sub("", page.read_text())
        assert not [line for line in left.splitlines() if line.startswith("|")], page


@pytest.mark.parametrize("page", tables.RESULTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_results_are_one_page() -> None:
    assert len(tables.PAGES[0].read_text().splitlines()) <= 120


def test_stale_and_written(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--check"]) == 1
    assert capsys.readouterr().out == "stale: page.md: made_up\n"
    assert "old" in page.read_text()
    assert main(["tables"]) == 0
    assert "| b   |   10 | x ± 1 |" in page.read_text()
    assert page.read_text().startswith("Before\n") and page.read_text().endswith("After\n")
    assert main(["tables", "--check"]) == 0
    assert main(["tables"]) == 0
    assert "written" in capsys.readouterr().out


@pytest.mark.usefixtures("page")
def test_rows_and_columns_are_chosen() -> None:
    found = tables.render("made_up | columns: RMSE; set | set: b; c")
    assert found == format_table(["RMSE", "set"], [["10", "b"]])
    with pytest.raises(ValueError, match="is not in list"):
        tables.render("made_up | columns: nothing")


def test_columns_of_numbers_are_right_aligned() -> None:
    table = format_table(["n", "text", "mixed"], [["1 000", "a", "1"], [2.0, "b", "1 ± 2"]])
    assert table.splitlines()[1] == "| ----: | ---- | ----- |"


def test_two_states_of_a_fit_are_paid_once() -> None:
    rows = [{"cpu_seconds": 1.25}, {"cpu_seconds": 1.25}, {"cpu_seconds": None}, {"CPU s": "3"}]
    assert totals.fits(rows) == [1.25]


@pytest.mark.long
def test_totals_are_of_all_records() -> None:
    header, lines = tables._whole("totals")
    *folders, whole = (dict(zip(header, line, strict=True)) for line in lines)
    found = {path.stem: records.read_record(path.stem) for path in records.FOLDER.glob("*.json")}
    seconds = [totals.fits(record["rows"]) for record in found.values()]
    assert int(whole["records"]) == len(found)
    assert int(whole["with CPU time"]) == sum(map(bool, seconds))
    assert int(whole["fits"]) == sum(map(len, seconds))
    assert float(whole["CPU hours"]) == pytest.approx(sum(map(sum, seconds)) / 3600, abs=0.05)
    assert sum(int(folder["fits"]) for folder in folders) == int(whole["fits"])
