"""Posterior-predictive training: the experiments of the paper, with controls."""

from __future__ import annotations

from benchmarks.benchmark import Benchmark
from benchmarks.shared.columns import BY_METHOD, CPU

_SPREAD = {
    "rmse": "of the mean of the draws, at the regular points",
    "sd regular": "median deviation there",
    "sd extra, min": "smallest deviation at the four points that break the pattern",
}

BENCHMARKS = (
    Benchmark(
        "papers.predictive.predictive_curve",
        "Which form of the loss keeps a spread where data contradict each other, and only there?",
        rows="a method, a seed and a state: the best one or the last",
        columns={
            **BY_METHOD,
            "state": "best or last",
            "step": "of that state",
            "sd regular, max": "largest deviation there",
            **_SPREAD,
            **CPU,
        },
        records={
            "predictive_curve": "--hidden 512 --num-steps 2000 --seeds 0 1 2 3 4",
            "predictive_line": "--hidden 0 --lr 0.01 --num-steps 4000 --methods "
            '"conditional, per datum" "conditional, expected" "unconditioned, per datum" '
            '"unconditioned, expected"',
        },
        short="--num-steps 2 --hidden 3 --seeds 0",
        short_settings={"num_draws": 4},
        figure=True,
    ),
    Benchmark(
        "papers.predictive.predictive_branches",
        "Does it find two branches, and what is that worth?",
        rows="a method, a seed and a state: the best one or the last",
        columns={
            "method": "a name of --methods",
            "seed": "of data and fit",
            "state": "best or last",
            "step": "of that state",
            "low": "share of draws near the lower curve, where there are two",
            "up": "near the upper one",
            "between": "near neither",
            "outside": "share near the only curve, elsewhere",
            "sd": "of the draws, where there are two",
            "log_density": "of a test point, mean",
            "scale": "of the noise in it, chosen on validation points",
            **CPU,
        },
        records={"predictive_branches": "--num-steps 1500"},
        short="--num-steps 2 --hidden 4 --seeds 0",
        short_settings={"num_draws": 4, "num_test": 20},
        figure=True,
    ),
    Benchmark(
        "papers.predictive.predictive_grid",
        "Which shapes of the posterior model, and how many draws?",
        rows="a guide, a shape, a number of draws and a seed",
        columns={
            "guide": "conditional or not",
            "shape": "noises, hidden units, outputs",
            "draws": "in the loss",
            "seed": "of the fit",
            "step": "at which it was stopped",
            "sd left": "deviation half a unit left of the data",
            **_SPREAD,
            **CPU,
        },
        records={
            "predictive_grid": '--hidden 32 --num-steps 6000 --seeds 0 1 2 3 4 --shapes "[1, N]" '
            '"[5, 16, N]" "[N, N]" "[N, N, N]"'
        },
        short="--num-steps 1 --hidden 3 --num-particles 1 2 3 --seeds 0",
        figure=True,
    ),
    Benchmark(
        "papers.predictive.forecasting",
        "Does it forecast a series better than maximum likelihood?",
        rows="a series, a method and a seed",
        columns={
            "series": "a name of --series, or own",
            "method": "a name of --methods, or a naive forecast",
            "seed": "of the fit",
            "epoch": "that validation chose",
            "rmse": "in the series' units",
            "by window": "mean over windows of their error",
            "MAPE": "percent, where that means something",
            "CRPS": "in the series' units",
            "coverage": "of the central 90% interval",
            "noise": "its scale that validation chose, standardised",
            "rate": "of dropout, that validation chose",
            **CPU,
        },
        records={
            "forecasting": "--series england --epochs 20 --num-particles 4",
            "forecasting_long": "--series england --epochs 100 --num-particles 10",
            "forecasting_sun": "--series sun --epochs 20 --num-particles 4",
            "forecasting_sun_long": "--series sun --epochs 100 --num-particles 10",
        },
        short="--epochs 1 --num-particles 2 --seeds 0",
        short_settings={
            "num_members": 2,
            "dropout": [0.1],
            "batch_size": {"england": 3000, "sun": 3000},
            "num_draws": 5,
            "scales": [0.25, 0.5],
        },
        needs=("cet_monthly.npz", "solar_tsi.npz"),
        figure=True,
    ),
)
