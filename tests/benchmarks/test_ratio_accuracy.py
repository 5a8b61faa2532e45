"""Ratios between known Gaussians: the truth, and which estimators come near it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import ratio_accuracy
from benchmarks.ratio_accuracy import ESTIMATORS, MOST_FULL, TARGETS, truth


@pytest.mark.parametrize("dim", TARGETS)
def test_truth_is_that_of_torch(dim: int) -> None:
    start = [torch.tensor(value, requires_grad=True) for value in TARGETS[dim]]
    q = torch.distributions.Normal(start[0], start[1])
    p = torch.distributions.Normal(0.0, 1.0)
    kl = dim * torch.distributions.kl_divergence(q, p)
    values = [kl.detach(), *torch.autograd.grad(kl, start)]
    expected = {k: float(v) for k, v in zip(("kl", "by_mean", "by_scale"), values, strict=True)}
    assert truth(dim, *TARGETS[dim]) == pytest.approx(expected, rel=1e-5)


def test_every_estimator_in_both_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "record.json"
    options = ["--dims", "500", "--repeats", "2", "--warm-up", "1", "--quiet"]
    rows = ratio_accuracy.main([*options, "--output", str(output)])
    assert len(rows) == 2 * (len(ESTIMATORS) - 1) and MOST_FULL < 500
    assert json.loads(output.read_text())["results"] == rows
    exact = truth(500, *TARGETS[500])
    for row in rows:
        assert ("clipped" in row) != ("critic_accuracy" in row)
        if row["d"] == 500 and row["estimator"] == "adaptive diagonal":
            assert row["kl"] == pytest.approx(exact["kl"], rel=0.05)
            assert row["by_mean"] == pytest.approx(exact["by_mean"], rel=0.1)
        if row["d"] == 500 and row["estimator"] == "published":
            assert row["kl"] < 0.1 * exact["kl"]
    assert "truth" in capsys.readouterr().out
