"""The benchmark of kills, with few of them."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from benchmarks import kill_and_resume


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_two_kills_and_identical_ends(capsys):
    kind = ["--objectives", "adversarial", "--checkpoints", "default", "--validation", "no"]
    rows = kill_and_resume.main(["--kills", "2", "--epochs", "2", "--quiet", *kind])
    assert all(row["same end"] for row in rows)
    assert f"2 kills; {len(rows)} of {len(rows)} ends are the same" in capsys.readouterr().out
