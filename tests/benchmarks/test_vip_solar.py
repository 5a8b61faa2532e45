"""Solar irradiance: which years choose, and a few steps of every method on a made-up series."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import vip_solar


@pytest.fixture()
def data_root(tmp_path: Path) -> Path:
    """A series of the same form."""
    year = np.arange(391) + 1610.5
    missing = np.zeros(391, dtype=bool)
    for start in (16, 92, 166, 242, 316):
        missing[start : start + 20] = True
    series = 1365 + np.sin(year / 15)
    np.savez(tmp_path / "solar_tsi.npz", year=year, tsi_cycle_bkgrnd=series, test_mask_5x20=missing)
    return tmp_path


def test_validation_years_are_blocks_of_training_years(data_root: Path) -> None:
    data = vip_solar.Data(data_root)
    assert not (data.chosen_by & ~data.kept).any()
    assert data.chosen_by.sum() == 5 * 14
    assert (data.chosen_by.int().diff() == 1).sum() == 5
    assert data.y[data.kept].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert data.years[data.kept].mean().item() == pytest.approx(0.0, abs=1e-3)


def test_every_method_runs(data_root: Path) -> None:
    figure, record = data_root / "bands.png", data_root / "record.json"
    arguments = ["--data-root", str(data_root), "--num-steps", "3", "--seeds", "0", "--quiet"]
    rows = vip_solar.main([*arguments, "--figure", str(figure), "--output", str(record)])
    assert [row["method"] for row in rows] == list(vip_solar.METHODS)
    assert all(math.isfinite(row["rmse"] + row["nll"]) for row in rows)
    assert figure.stat().st_size > 0
    assert len(json.loads(record.read_text())["results"]) == len(rows)


def test_missing_years_change_no_choice(data_root: Path) -> None:
    data = vip_solar.Data(data_root)
    results = []
    for shift in (0.0, 50.0):
        data.y[~data.kept] += shift
        torch.manual_seed(0)
        results.append(vip_solar.chosen("alpha=0", data, lambda count: range(min(count, 4))))
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][0], results[1][0])


def test_the_gaussian_process_fills_a_smooth_series(data_root: Path) -> None:
    data = vip_solar.Data(data_root)
    (mean, sd), _ = vip_solar.exact_gp(data, lambda count: range(min(count, 100)))
    assert (mean - data.y)[~data.kept].abs().mean() < 0.5
    assert bool((sd > 0).all())
