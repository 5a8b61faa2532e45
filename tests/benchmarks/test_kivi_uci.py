"""A few steps of every method on a small set, and what the marginal moments force."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import kivi_uci
from benchmarks._kivi_uci import METHODS, NUM_HIDDEN, marginal_kl


@pytest.fixture()
def data_root(tmp_path: Path) -> Path:
    """A set of 30 rows with one split."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)).astype(np.float32)
    rows = np.arange(30, dtype=np.int32)
    (tmp_path / "uci").mkdir()
    np.savez(
        tmp_path / "uci" / "toy.npz",
        X=x,
        y=(100 + 10 * x[:, 0]).astype(np.float32),
        train_idx=rows[None, :26],
        test_idx=rows[None, 26:],
    )
    return tmp_path


def test_every_method(data_root: Path, tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    options = ["--data-root", str(data_root), "--sets", "toy", "--splits", "0", "--quiet"]
    rows = kivi_uci.main([*options, "--num-steps", "3", "--output", str(output)])
    assert [row["method"] for row in rows] == list(METHODS)
    assert json.loads(output.read_text())["results"] == rows
    for row in rows:
        assert math.isfinite(row["log_likelihood"]) and 0 <= row["coverage"] <= 1
        assert (row["claimed_kl"] is None) == (row["method"] in ("mean-field", "no KL"))


def test_forced_kl_of_the_prior_is_none() -> None:
    torch.manual_seed(0)
    shapes = {"first": (NUM_HIDDEN, 4), "second": (1, NUM_HIDDEN + 1)}
    draws = {name: torch.randn(20_000, *shape) for name, shape in shapes.items()}
    assert marginal_kl(draws) == pytest.approx(0.0, abs=0.05)
    narrow = {name: 0.1 * value for name, value in draws.items()}
    each = 0.5 * (0.01 - 1 - math.log(0.01))
    assert marginal_kl(narrow) == pytest.approx(251 * each, rel=0.01)
