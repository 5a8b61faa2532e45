"""Cost of an implicit process: the record, and that memory stays linear in the inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import process_cost


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    sizes = ["--sizes", "20000", "10000", "--num-functions", "4", "--output", str(record)]
    rows = process_cost.main(sizes)
    assert [row["N"] for row in rows] == [10_000, 20_000]
    # a matrix of all pairs of 20 000 would be 3.2 GB
    assert all(row["gradient"] > 0 and row["growth"] < 3e8 for row in rows)
    assert "to the power" in capsys.readouterr().out
    assert len(json.loads(record.read_text())["results"]) == 2


def test_the_slope_of_a_power() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert process_cost.slope(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
