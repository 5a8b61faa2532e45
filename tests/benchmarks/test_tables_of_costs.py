"""Means over seeds, goals beside ratios, differences on the same seed."""

from __future__ import annotations

from typing import Any

from benchmarks.cost import ddp, overhead
from benchmarks.numerics import bfloat16


def test_runs_of_the_same_number_of_processes_are_one_line() -> None:
    same = {"processes": 2, "parameters": 5, "MB sent per step": 2e-5}
    rows = [same | {"seconds per step": s, "data per second": 10 / s} for s in (1.0, 3.0)]
    lines = ddp.table([same | rows[0] | {"processes": 1}, *rows]).splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["1", "2"]
    assert "2.000 ± 1.000" in lines[3] and "7 ± 3" in lines[3]


def test_ratios_stand_beside_their_goals() -> None:
    ms = dict.fromkeys(
        ("implicit, vectorised", "AutoNormal, vectorised", "implicit, looped"), 2.0
    ) | dict.fromkeys(
        ("entropy: package", "entropy: Jacobian, m x m", "entropy: Jacobian, d x d"), 1.0
    )
    found = overhead.ratios(ms)
    assert set(overhead.GOALS) < set(found)
    rows = [{"what": "ratio", "of": name, "value": value} for name, value in found.items()]
    rows.append({"what": "median ms", "of": "implicit, looped", "value": 2.0})
    lines = overhead.with_goals(rows).splitlines()[2:]
    assert len(lines) == 4 and lines[0].endswith("| <= 3   |") and lines[3].endswith("|        |")


def test_half_precision_less_single_on_the_same_seed() -> None:
    def row(precision: str, seed: int, nll: float) -> dict[str, Any]:
        scores = dict.fromkeys(bfloat16.SCORES, 0.5) | {"nll 0": nll}
        return {"precision": precision, "seed": seed, "steps": 40, "not finite": seed} | scores

    rows = [row("32-true", 0, 1.0), row("32-true", 1, 2.0)]
    rows += [row("bf16-mixed", 0, 1.5), row("bf16-mixed", 1, 2.5)]
    assert "+0.5000 ± 0.0000" in bfloat16.differences(rows)
    assert bfloat16.table(rows).count("1 of 80") == 2
