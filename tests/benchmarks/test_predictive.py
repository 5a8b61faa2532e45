"""The posterior-predictive experiments, tiny, and their measures on draws that are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.benchmark import replaced
from benchmarks.common import format_table
from benchmarks.papers.predictive import (
    _forecast_data,
    _forecast_figure,
    _forecast_fits,
    forecasting,
    predictive_branches,
    predictive_curve,
    predictive_grid,
)
from benchmarks.papers.predictive._networks import Recipe, by_maximum_likelihood
from benchmarks.papers.predictive._predictive import (
    Windowed,
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


@pytest.mark.long
def test_a_network_of_two_gaussians_finds_two_values() -> None:
    torch.manual_seed(0)
    x, signs = torch.rand(80, 1), 2.0 * (torch.arange(80) % 2) - 1
    parts = ((x[:60], signs[:60]), (x[60:], signs[60:]))
    calls: list[None] = []
    best, last = by_maximum_likelihood(
        Recipe(2, 2, 200, 0.02, 0.1, 20), *parts, lambda: calls.append(None)
    )
    assert (best.name, last.name, last.step, len(calls)) == ("best", "last", 200, 400)
    assert best.score <= last.score
    one_gaussian = 0.5 * math.log(2 * math.pi * math.e)
    assert best.score < one_gaussian - 0.5
    assert best.net(parts[1][0], 0.1).sample((3,)).shape == (3, 20)


def test_steps_end_when_the_loss_no_longer_falls() -> None:
    steps = Windowed(range(100), size=5, gain=0.5, start=10)
    for step in steps:
        steps.add(100.0 if step < 10 else max(0.0, 20.0 - step))
    assert steps.num_taken == 30  # 8, 3, 0.2, 0: the gain of the last window is below 0.5
    for _ in (short := Windowed(range(7), size=5, gain=0.5)):
        short.add(-float(short.num_taken))
    assert short.num_taken == 7


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
    assert {row["series"] for row in rows} == {"own"}
    seasonal = rows[1]
    assert seasonal["rmse"] == pytest.approx(0.0, abs=1e-2)
    assert all(0 <= row["coverage"] <= 1 for row in rows[2:])


def of(values: np.ndarray, season: int = 11) -> forecasting.Series:
    return forecasting.Series(values, "units", season, 6, 3, is_ratio=False)


def test_seasons_and_windows_are_the_series_own(small_data: Path) -> None:
    options = forecasting._options()
    root = ["--data-root", str(small_data)]
    default = options.parse_args(root)
    england, sun = (forecasting.series(name, default) for name in forecasting.SERIES)
    assert (england.season, england.past, england.ahead, england.is_ratio) == (12, 6, 3, True)
    assert (sun.season, sun.past, sun.ahead, sun.is_ratio) == (11, 22, 5, False)
    own = options.parse_args([*root, "--season", "9", "--ahead", "2"])
    found = forecasting.series("sun", own)
    assert (found.season, found.past, found.ahead) == (9, 22, 2)


def test_margins_are_paired_by_seed() -> None:
    def row(method: str, seed: int | None, rmse: float) -> dict[str, Any]:
        return {"series": "sun", "method": method, "seed": seed, "rmse": rmse, "CRPS": rmse / 2}

    rows = [row("naive", None, 9.0)]
    for seed in (0, 1):
        rows += [row("maximum likelihood", seed, 1.0 + seed), row("conditional", seed, 1.5 + seed)]
    expected = [["sun", "conditional", "+0.500 ± 0.000", "+0.250 ± 0.000"]]
    table = forecasting.margins(rows)
    assert table == format_table(["series", "method", "rmse", "CRPS"], expected)


def test_branches_are_paired_by_state_and_seed() -> None:
    rows = [
        {"method": method, "state": state, "seed": seed, "log_density": value * (1 + seed)}
        for method, value in (("per datum", 1.0), ("labels", 1.5))
        for state in ("best", "last")
        for seed in (0, 1)
    ]
    expected = [[state, "labels", "+0.75 ± 0.25"] for state in ("best", "last")]
    table = predictive_branches.margins(rows)
    assert table == format_table(["state", "method", "log density"], expected)


def test_draws_shapes_and_the_context_are_paired_by_seed() -> None:
    rows: list[dict[str, Any]] = [
        {"guide": guide, "shape": shape, "draws": draws, "seed": seed, "rmse": error + seed}
        for guide, error in (("unconditioned", 1.0), ("conditional", 0.5))
        for shape, draws in (("[1, N]", 10), ("[5, 16, N]", 10), ("[1, N]", 100))
        for seed in (0, 1)
    ]
    for row in rows:
        row["rmse"] += row["draws"] + row["seed"] * (row["shape"] == "[1, N]")
        row["sd extra, min"] = 0.0
    zero = "+0.00 ± 0.00"
    guides = ("unconditioned", "conditional")
    more = [[guide, "[1, N]", 100, "+90.00 ± 0.00", zero] for guide in guides]
    names = ["rmse", "sd extra"]
    assert predictive_grid.differences(rows) == format_table(
        ["guide", "shape", "draws", *names], more
    )
    wider = [[guide, 10, "[1, N]", "+0.50 ± 0.50", zero] for guide in guides]
    assert predictive_grid.shapes(rows) == format_table(["guide", "draws", "shape", *names], wider)
    assert predictive_grid.context(rows).count("| conditional | -0.50 ± 0.00 |") == 3


def test_methods_are_paired_by_state_and_seed() -> None:
    first = next(iter(predictive_curve.METHODS))
    measured = {"sd regular": 0.1, "sd extra, min": 1.0}
    rows = [
        {"method": method, "seed": seed, "state": state, "rmse": error * (1 + seed), **measured}
        for method, error in ((first, 1.0), ("HMC", 0.5))
        for state in ("best", "last")
        for seed in (0, 1)
        if (method, state) != ("HMC", "best")
    ]
    table = predictive_curve.differences(rows)
    assert table.splitlines()[2:] == [
        "| last  | HMC    | -0.750 ± 0.250 | +0.000 ± 0.000 | +0.000 ± 0.000 |"
    ]


def test_windows_are_split_by_time_and_standardised_by_the_training_part() -> None:
    values = torch.arange(100.0).numpy()
    windows = forecasting.Windows(of(values, season=12))
    sizes = [len(part[0]) for part in (windows.train, windows.validation, windows.test)]
    assert sum(sizes) == 92 - 2 * 2  # windows whose targets are in two parts are left out
    x, y = windows.test
    restored = torch.cat([x, y], 1) * windows.scale + windows.mean
    torch.testing.assert_close(restored[:, 1:] - restored[:, :-1], torch.ones(sizes[2], 8))
    later = (windows.train[1], windows.validation[1], y)
    for before, after in zip(later[:-1], later[1:], strict=True):
        assert before.max() < after.min()  # the series rises: targets are of one part alone
    torch.testing.assert_close(
        windows.seasonal * windows.scale + windows.mean, restored[:, 6:] - 12, rtol=1e-5, atol=1e-3
    )


@pytest.mark.long
def test_the_score_of_gaussian_draws_is_that_of_the_gaussian() -> None:
    """CRPS of N(0, 1) at 0 is (sqrt 2 - 1) / sqrt pi, and 90% of intervals cover."""
    torch.manual_seed(0)
    windows = forecasting.Windows(of(torch.randn(200).double().numpy()))
    f, y = torch.zeros(1, 4000, 3), torch.randn(4000, 3)
    found = forecasting.scores(f, y, 1.0, windows)
    assert found["coverage"] == pytest.approx(0.9, abs=0.02)
    assert found["MAPE"] is None
    # the mean of CRPS over y ~ N(0, 1) is 1 / sqrt pi
    assert found["CRPS"] / windows.scale == pytest.approx(torch.pi**-0.5, rel=0.03)


def test_an_ensemble_has_a_draw_of_each_network_and_dropout_a_rate() -> None:
    torch.manual_seed(0)
    found = of(np.sin(np.arange(120) * 0.5) + 3.0)
    windows = _forecast_data.Windows(found)
    shorter = {"num_members": 3, "dropout": [0.0, 0.9], "num_draws": 7}
    with replaced(_forecast_fits.SETTINGS, shorter):
        f, chosen = _forecast_fits.fit("own", "ensemble of 5", windows, 1, range(2))
        assert f.shape == (3, *windows.test[1].shape) and 1 <= chosen["epoch"] <= 2
        assert f.std(0).min() > 0
        f, chosen = _forecast_fits.fit("own", "MC dropout", windows, 1, range(30))
    assert f.shape == (7, *windows.test[1].shape)
    assert chosen["rate"] == 0.0 and f.std(0).max() == 0  # a smooth curve needs none


def test_bands_are_quantiles_with_noise() -> None:
    torch.manual_seed(0)
    low, median, high = _forecast_figure.band(torch.zeros(5, 200, 3), 2.0)
    assert median.mean().item() == pytest.approx(0.0, abs=0.05)
    assert high.mean().item() == pytest.approx(2 * 1.645, abs=0.05)
    assert low.mean().item() == pytest.approx(-2 * 1.645, abs=0.05)
