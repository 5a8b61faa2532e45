"""The posterior-predictive experiments, tiny, and their measures on draws that are known."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.common import format_table
from benchmarks.papers.predictive import (
    forecasting,
    predictive_branches,
)
from benchmarks.papers.predictive._networks import by_maximum_likelihood
from benchmarks.papers.predictive._predictive import (
    best_scale,
    negative_log_predictive,
    two_branches,
    x_sin_x,
)
from benchmarks.papers.predictive._tables import over_seeds


def test_the_curve_and_its_four_extra_points() -> None:
    data = x_sin_x()
    assert (data.x.shape, data.y.shape, data.validation.shape) == ((36, 1), (36,), (35, 2))
    assert data.x.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert data.y.std().item() == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(data.validation[-4:, 0], data.x[-4:, 0])
    on_curve = data.y_test[data.regular]
    nearest = (data.x_test[data.regular] - data.x[5]).abs().argmin()
    assert on_curve[nearest].item() == pytest.approx(data.y[5].item(), abs=0.05)


def test_branches_have_half_of_the_data_each() -> None:
    torch.manual_seed(0)
    x, y, upper = two_branches()
    assert upper.sum() == 64
    low = (10 * x[:, 0] - 5) * torch.sin(10 * x[:, 0] - 5)
    assert (y - low - upper.float()).abs().max() < 0.05
    assert x[upper].min() > 0.3 and x[~upper].max() < 0.6


def test_points_of_the_branches_that_are_not_on_the_grid() -> None:
    torch.manual_seed(0)
    x, y, upper = two_branches(400, regular=False)
    low = (10 * x[:, 0] - 5) * torch.sin(10 * x[:, 0] - 5)
    assert (y - low - upper.float()).abs().max() < 0.05
    assert 0.3 < x[upper].min() < 0.32 and 0.58 < x[~upper].max() < 0.6


def test_shares_of_draws_that_are_on_the_curves() -> None:
    grid = torch.linspace(0.0, 1.0, 201)[:, None]
    x = grid[:, 0]
    low = (10 * x - 5) * torch.sin(10 * x - 5)
    f = low + (x > 0.6).float() + torch.zeros(8, 1)
    f[:2, (x > 0.3) & (x < 0.6)] += 1.0
    found = predictive_branches.measures(f, grid)
    assert found["up"] == pytest.approx(0.25)
    assert found["low"] == pytest.approx(0.75)
    assert found["between"] == pytest.approx(0.0)
    assert found["outside"] > 0.98


def test_the_log_predictive_density_of_one_draw_is_gaussian() -> None:
    value = negative_log_predictive(torch.zeros(1, 3), torch.tensor([0.0, 1.0, -1.0]), 1.0)
    assert value == pytest.approx(0.9189385 + 1 / 3)


def test_the_scale_of_noise_that_fits_best() -> None:
    torch.manual_seed(0)
    value, scale = best_scale(torch.zeros(1, 500), 0.1 * torch.randn(500), [0.01, 0.1, 1.0])
    assert scale == 0.1
    assert value == pytest.approx(0.5 * math.log(2 * math.pi * math.e) + math.log(0.1), abs=0.1)


def test_a_network_of_two_gaussians_finds_two_values() -> None:
    torch.manual_seed(0)
    x, signs = torch.rand(80, 1), 2.0 * (torch.arange(80) % 2) - 1
    parts = ((x[:60], signs[:60]), (x[60:], signs[60:]))
    states = by_maximum_likelihood(2, *parts, range(200), num_steps=200, lr=0.02, check_every=20)
    assert [(name, step) for name, step, _ in states][1] == ("last", 200)
    best = states[0][2].distribution(parts[1][0]).log_prob(parts[1][1][:, None]).mean()
    one_gaussian = -0.5 * math.log(2 * math.pi * math.e)
    assert best > one_gaussian + 0.5


def test_tables_have_means_over_seeds() -> None:
    rows = [{"method": "a", "seed": k, "rmse": 1.0 + k, "scale": None} for k in (0, 1, 2)]
    rows.append({"method": "b", "seed": 0, "rmse": 0.5, "scale": 2.0})
    table = over_seeds(rows, ["method"], {"rmse": ("error", ".2f"), "scale": ("noise", ".1f")})
    expected = [["a", "2.00 ± 0.58", None], ["b", "0.50", "2.0"]]
    assert table == format_table(["method", "error", "noise"], expected)


def test_forecasts_of_a_series_of_ones_own(tmp_path) -> None:
    months = 10 + 5 * torch.sin(torch.arange(150) * torch.pi / 6)
    lines = "\n".join(f"{i},{value:.3f}" for i, value in enumerate(months.tolist()))
    (tmp_path / "own.csv").write_text("month,value\n" + lines + "\n")
    rows = forecasting.main(
        [
            *("--csv", str(tmp_path / "own.csv"), "--epochs", "1", "--num-particles", "2"),
            *("--seeds", "0", "--quiet", "--methods", "maximum likelihood"),
        ]
    )
    assert [row["method"] for row in rows] == ["naive", "seasonal", "maximum likelihood"]
    seasonal = rows[1]
    assert seasonal["rmse"] == pytest.approx(0.0, abs=1e-2)
    assert all(0 <= row["coverage"] <= 1 for row in rows[2:])


def test_windows_are_split_by_time_and_standardised_by_the_training_part() -> None:
    values = torch.arange(100.0).numpy()
    windows = forecasting.Windows(values, 6, 3)
    sizes = [len(part[0]) for part in (windows.train, windows.validation, windows.test)]
    assert sum(sizes) == 92
    x, y = windows.test
    restored = torch.cat([x, y], 1) * windows.scale + windows.mean
    torch.testing.assert_close(restored[:, 1:] - restored[:, :-1], torch.ones(sizes[2], 8))
    assert restored.min() > values[sizes[0] + sizes[1] - 1]
    torch.testing.assert_close(
        windows.seasonal * windows.scale + windows.mean, restored[:, 6:] - 12, rtol=1e-5, atol=1e-3
    )


def test_the_score_of_gaussian_draws_is_that_of_the_gaussian() -> None:
    """CRPS of N(0, 1) at 0 is (sqrt 2 - 1) / sqrt pi, and 90% of intervals cover."""
    torch.manual_seed(0)
    windows = forecasting.Windows(torch.randn(200).double().numpy(), 6, 3)
    f, y = torch.zeros(1, 4000, 3), torch.randn(4000, 3)
    found = forecasting.scores(f, y, 1.0, windows)
    assert found["coverage"] == pytest.approx(0.9, abs=0.02)
    # the mean of CRPS over y ~ N(0, 1) is 1 / sqrt pi
    assert found["CRPS"] / windows.scale == pytest.approx(torch.pi**-0.5, rel=0.03)
