"""Solar irradiance: which years choose, and a few steps of every method on a made-up series."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.vip import vip_solar


def test_validation_years_are_blocks_of_training_years(small_data: Path) -> None:
    data = vip_solar.Data(small_data)
    assert not (data.chosen_by & ~data.kept).any()
    assert data.chosen_by.sum() == 5 * 14
    assert (data.chosen_by.int().diff() == 1).sum() == 5
    assert data.y[data.kept].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert data.years[data.kept].mean().item() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.long
def test_missing_years_change_no_choice(small_data: Path) -> None:
    data = vip_solar.Data(small_data)
    results = []
    for shift in (0.0, 50.0):
        data.y[~data.kept] += shift
        torch.manual_seed(0)
        results.append(vip_solar.chosen("alpha=0", data, lambda count: range(min(count, 4))))
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][0], results[1][0])


@pytest.mark.long
def test_the_gaussian_process_fills_a_smooth_series(small_data: Path) -> None:
    data = vip_solar.Data(small_data)
    (mean, sd), _ = vip_solar.gaussian_process(data, lambda count: range(min(count, 100)))
    assert (mean - data.y)[~data.kept].abs().mean() < 0.5
    assert bool((sd > 0).all())


def test_differences_are_to_the_collapsed_objective_of_the_same_seed() -> None:
    rows = [
        {"method": method, "seed": seed, "rmse": 0.2 * nll, "nll": nll}
        for method, seed, nll in (("exact GP", 0, 1.0), ("collapsed", 0, 2.0), ("dropout", 1, 9.0))
    ]
    (line,) = vip_solar.differences(rows).splitlines()[2:]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "exact GP",
        "-0.20",
        "-1.00",
        "1 of 1",
    ]
