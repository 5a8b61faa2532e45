"""
Forecasts of two series by N-BEATS (section 3.4 of Dabrowski and Pagendam; their table 3): trained
by maximum likelihood, under an unconditioned and a conditional implicit posterior (4 noises, 16
ReLU units; posterior-predictive loss per window), and under mean-field VI. Beside them five
networks by maximum likelihood, and one whose units are left out in training and in prediction (MC
dropout) at a rate that validation chooses.

england  monthly temperature, 1723 to 1970: 6 months to 3, as in the paper
sun      yearly total irradiance (a reconstruction), 1610 to 2000: two cycles of 11 years to 5 years

The network is one stack of 3 shared generic blocks, theta 32, width 64. The first 70% of the
windows are for training, their last seventh for validation: the epoch, and the scale of the
Gaussian likelihood at prediction, are the best there. Windows whose targets are in two parts are
left out.

What the paper leaves open: its windows (6 and 3 in the text, 24 and 12 in its table 2; neither
gives its 2960 pairs from the 2976 months), whether the split is by time (it is here), the units of
its errors (degrees here), and whether its RMSE is one number or a mean over windows (both here).

naive      the last value repeated; "seasonal": the value one season before
rmse       of the predictive mean over all values; "by window": mean over windows of their own
MAPE       mean absolute percentage error; only where a percentage of a value means something,
           which it barely does near 0 degrees and not at all for the sun's 1365 W/m2
CRPS       continuous ranked probability score of the draws, noise included
coverage   of central 90% intervals

--csv FILE takes another series: one value per line, or the last column after a header; its season
and windows are --season, --past and --ahead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, load_npz, parse, parser, positive, stopwatch
from benchmarks.papers.predictive._forecast_data import Series, Windows
from benchmarks.papers.predictive._forecast_figure import band, draw_forecasts
from benchmarks.papers.predictive._forecast_fits import METHODS, SETTINGS, fit
from benchmarks.papers.predictive._tables import over_seeds, paired
from benchmarks.records import write_record

SERIES = ("england", "sun")
#: whose forecasts are drawn
DRAWN = ("maximum likelihood", "ensemble of 5", "conditional")


def series(name: str, arguments: Any) -> Series:
    """One of :data:`SERIES`, or ``"own"``: that of ``--csv``. Sizes of windows by the options."""
    if name == "england":
        data = load_npz(arguments.data_root, "cet_monthly.npz")
        found = Series(data["temp"][data["mask_1723_1970"]], "degrees C", 12, 6, 3, True)
    elif name == "sun":
        data = load_npz(arguments.data_root, "solar_tsi.npz")
        found = Series(data["tsi_cycle_bkgrnd"], "W/m2", 11, 22, 5, False)
    else:
        found = Series(_lines(arguments.csv), "own", 12, 6, 3, True)
    given = {key: getattr(arguments, key) for key in ("season", "past", "ahead")}
    given = {key: value for key, value in given.items() if value is not None}
    return replace(found, values=found.values.astype(np.float64), **given)


def _lines(path: Path) -> np.ndarray:
    lines = [line.split(",")[-1] for line in path.read_text().splitlines() if line]
    try:
        float(lines[0])
    except ValueError:
        lines = lines[1:]
    return np.asarray([float(line) for line in lines])


def scores(f: Tensor, y: Tensor, sigma: float | None, windows: Windows) -> dict[str, float | None]:
    """All measures, in units; ``sigma`` is the scale of the noise, None for point forecasts."""
    to_units = windows.scale
    error = (f.mean(0) - y) * to_units
    truth = y * to_units + windows.mean
    row: dict[str, float | None] = {
        "rmse": error.square().mean().sqrt().item(),
        "by window": error.square().mean(-1).sqrt().mean().item(),
        "MAPE": 100 * (error / truth).abs().mean().item() if windows.series.is_ratio else None,
        "CRPS": None,
        "coverage": None,
    }
    if sigma is not None:
        noisy = f.repeat(200 // len(f), 1, 1)
        noisy = noisy + sigma * torch.randn_like(noisy)
        low, high = noisy.quantile(0.05, 0), noisy.quantile(0.95, 0)
        row["coverage"] = ((y >= low) & (y <= high)).float().mean().item()
        ordered = noisy.sort(0).values
        n = len(ordered)
        weights = (2 * torch.arange(1, n + 1) - n - 1)[:, None, None] / n**2
        spread = (weights * ordered).sum(0)
        row["CRPS"] = (((noisy - y).abs().mean(0) - spread) * to_units).mean().item()
    return row


#: RMSE and MAPE in table 3 of the paper
PAPER = {
    "naive": "4.47, 72.5",
    "maximum likelihood": "2.87, 55.6",
    "unconditioned": "1.86, 35.7",
    "conditional": "1.35, 27.8",
}


def table(rows: list[dict[str, Any]]) -> str:
    """One line for a series and a method: means over seeds with their standard errors."""
    forms = {"rmse": ".3f", "by window": ".3f", "MAPE": ".1f", "CRPS": ".3f", "coverage": ".3f"}
    columns = {key: (key, form) for key, form in forms.items()}
    columns |= {"epoch": ("epoch", ".0f"), "cpu_seconds": ("CPU s", ".0f")}
    shown = [
        row | {"paper": PAPER.get(row["method"], "") if row["series"] == "england" else ""}
        for row in rows
    ]
    return over_seeds(shown, ("series", "method", "paper"), columns)


def margins(rows: list[dict[str, Any]]) -> str:
    """How far each method is behind maximum likelihood, paired by seed."""
    columns = {key: (key, "+.3f") for key in ("rmse", "CRPS")}
    return paired(rows, METHODS[0], ("series",), columns)


def beside_ensemble(rows: list[dict[str, Any]]) -> str:
    """How far each method is behind the ensemble, paired by seed."""
    columns = {key: (key, "+.3f") for key in ("rmse", "CRPS", "coverage")}
    return paired(rows, "ensemble of 5", ("series",), columns)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    settings = copy.deepcopy(SETTINGS) | {"num_particles": arguments.num_particles}
    settings |= {"epochs": arguments.epochs}
    rows: list[dict[str, Any]] = []
    bands: dict[str, Tensor] = {}
    for name in ["own"] if arguments.csv is not None else arguments.series:
        windows = Windows(series(name, arguments))
        own = windows.series
        settings[name] = {"unit": own.unit, "season": own.season}
        settings[name] |= {"past": own.past, "ahead": own.ahead}
        rows += _naive(name, windows)
        for seed in arguments.seeds:
            for method in arguments.methods:
                epochs = trange(arguments.epochs, desc=method, disable=arguments.quiet)
                job = (name, method, windows, arguments.num_particles, epochs)
                with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                    f, chosen = fit(*job)
                    found = scores(f, windows.test[1], chosen["noise"], windows)
                row = {"series": name, "method": method, "seed": seed, **chosen, **found}
                rows.append(row | {"cpu_seconds": watch.cpu_seconds})
                write_record("forecasting", arguments, settings, rows)
                if method in DRAWN and seed == arguments.seeds[0]:
                    bands[method] = band(f, chosen["noise"])
        if arguments.figure is not None:
            draw_forecasts(arguments.figure, windows, bands, own.unit)
    print(table(rows))
    return rows


def _naive(name: str, windows: Windows) -> list[dict[str, Any]]:
    x, y = windows.test
    return [
        {"series": name, "method": method, "seed": None, "epoch": None}
        | scores(f[None], y, None, windows)
        for method, f in (("naive", x[:, -1:].expand_as(y)), ("seasonal", windows.seasonal))
    ]


def _options() -> Any:
    options = parser(
        __doc__ or "", seeds=range(5), methods=METHODS, figure="of the last series, first seed"
    )
    options.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES))
    options.add_argument("--epochs", type=positive, default=100, help="(default: 100)")
    options.add_argument("--num-particles", type=positive, default=10, help="(default: 10)")
    options.add_argument("--csv", type=Path, metavar="FILE", help="another series, alone")
    for name, what in (("past", "seen"), ("ahead", "forecast"), ("season", "of a season")):
        own = f"steps {what} (default: the series')"
        options.add_argument(f"--{name}", type=positive, metavar="N", help=own)
    return options


if __name__ == "__main__":
    main()
