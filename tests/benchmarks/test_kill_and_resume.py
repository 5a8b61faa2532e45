"""The benchmark of kills, with few of them."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from benchmarks import kill_and_resume


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_two_kills_two_identical_ends(capsys):
    rows = kill_and_resume.main(["--kills", "2", "--epochs", "1", "--quiet"])
    assert [row["same end"] for row in rows] == [True, True]
    assert "2 of 2 ends are the same bits" in capsys.readouterr().out
