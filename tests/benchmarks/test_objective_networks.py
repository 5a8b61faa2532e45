"""The comparison of objectives on networks: its table, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from benchmarks.posterior import objective_networks
from benchmarks.posterior.objective_networks import Network, table
from benchmarks.shared.uci import Split, build_model


def _row(method: str, split: int, score: float) -> dict[str, object]:
    done = {"rmse": 1.0, "log_likelihood": score, "coverage": 0.9, "steps": 10}
    return {"set": "yacht", "split": split, "seed": 0, "method": method, "note": "", **done}


def test_margins_are_paired_over_splits() -> None:
    rows = [_row("mean-field", 0, -1.0), _row("mean-field", 1, -3.0)]
    rows += [_row("KPG", 0, -0.5), _row("KPG", 1, -2.5)]
    line = table(rows).splitlines()[-1]
    assert "+0.500 ± 0.000" in line and "-1.500 ± 1.000" in line


def test_a_fit_that_failed_has_its_note_alone() -> None:
    failed = {"set": "yacht", "split": 0, "seed": 0, "method": "KSIVI", "note": "GuideError: no"}
    assert "GuideError: no" in table([_row("mean-field", 0, -1.0), failed]).splitlines()[-1]


def test_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ArithmeticError("too far")

    x, y = torch.randn(6, 2), torch.randn(6)
    split = Split(x, y, x, y, 1.0)
    target = Network("yacht", build_model(2, 6), split, {})
    monkeypatch.setattr(objective_networks, "train", failing)
    found = objective_networks._fitted(target, "KPG", True)
    assert found == {"note": "ArithmeticError: too far"}
    with pytest.raises(NotImplementedError, match="by its predictions"):
        target.log_density(x)
    with pytest.raises(NotImplementedError, match="by its predictions"):
        target.exact(3)


def test_no_guide_moves_where_the_next_one_begins() -> None:
    x, y = torch.randn(6, 2), torch.randn(6)
    target = Network("yacht", build_model(2, 6), Split(x, y, x, y, 1.0), {"w": torch.zeros(2)})
    target.start({"name": "w", "fn": None}).add_(1.0)
    assert torch.equal(target.start({"name": "w", "fn": None}), torch.zeros(2))
