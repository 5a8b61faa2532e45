"""The comparison of objectives: its measures on known cases, and a few steps of every method."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks.posterior import objectives
from benchmarks.posterior._objectives_instability import ESTIMATES
from benchmarks.posterior._objectives_targets import TARGETS, entropy, gaussian_kl


@pytest.mark.parametrize("dim", [1, 2])
def test_entropy_of_a_gaussian(dim: int) -> None:
    torch.manual_seed(0)
    exact = dim * (0.5 * math.log(2 * math.pi * math.e) + math.log(3.0))
    assert entropy(3.0 * torch.randn(10_000, dim)) == pytest.approx(exact, abs=0.05)


def test_gaussian_kl_of_a_shift() -> None:
    draws = torch.randn(5000, 2, dtype=torch.float64)
    draws = torch.linalg.solve(torch.linalg.cholesky(draws.T.cov()), draws.T).T
    assert gaussian_kl(draws + torch.tensor([2.0, 0.0]), draws) == pytest.approx(2.0)


@pytest.mark.parametrize("name", TARGETS)
def test_exact_draws_have_no_error(name: str) -> None:
    torch.manual_seed(0)
    target = TARGETS[name]()
    errors = target.errors(target.exact(10_000))
    assert errors["w1"] < 0.25
    assert errors["gaussian_kl"] < 0.01
    assert abs(errors["true_kl"]) < 0.06
    if name == "mixture":
        assert errors["right"] == pytest.approx(0.5, abs=0.03)
        assert errors["bridge"] == pytest.approx(0.0228, abs=0.01)


def test_instability(tmp_path: Path) -> None:
    figure = tmp_path / "curves.png"
    options = ["--instability", "--num-steps", "4", "--seeds", "0", "--quiet"]
    rows = objectives.main([*options, "--figure", str(figure)])
    assert [row["estimate"] for row in rows] == list(ESTIMATES)
    assert all(math.isfinite(row["sd"]) for row in rows)
    assert figure.stat().st_size > 0
