"""The overhead benchmark runs and tells the ratios that it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import overhead


def test_short_run_writes_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "overhead.json"
    ratios = overhead.main(["--rounds", "1", "--quiet", "--output", str(record)])
    assert all(value > 0 for value in ratios.values())
    assert json.loads(record.read_text())["results"]["ratios"] == pytest.approx(ratios)
    assert "implicit / AutoNormal" in capsys.readouterr().out
