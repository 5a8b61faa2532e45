"""
Forecasts of two series by N-BEATS (section 3.4 of Dabrowski and Pagendam; their table 3): trained
by maximum likelihood, under an unconditioned and a conditional implicit posterior (4 noises, 16
ReLU units; posterior-predictive loss per window), and under mean-field VI.

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
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, load_npz, parse, parser, positive, stopwatch
from benchmarks.networks import NBeats
from benchmarks.papers.predictive._predictive import loss
from benchmarks.papers.predictive._tables import over_seeds, paired
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, ConditionalHyperNetworkGuide, HyperNetworkGuide, predict
from pyro_implicit.training import Annealed, EarlyStopping

SETTINGS: dict[str, Any] = {
    "batch_size": {"england": 128, "sun": 32, "own": 128},
    "lr": {"maximum likelihood": 0.01, "mean-field": 3e-3, "other": 1e-3},
    "scale": 0.25,
    "num_draws": 50,
    "num_checks": 10,
    "scales": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0],
}
METHODS = ("maximum likelihood", "mean-field", "unconditioned", "conditional")
SERIES = ("england", "sun")


@dataclass(frozen=True)
class Series:
    """
    :param values: oldest first, ``(N,)``.
    :param str unit: of the values.
    :param int season: steps after which they are alike.
    :param int past: inputs of a window.
    :param int ahead: outputs of a window.
    :param bool is_ratio: whether a percentage of a value means something.
    """

    values: np.ndarray
    unit: str
    season: int
    past: int
    ahead: int
    is_ratio: bool


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


class Windows:
    """
    Windows slid over a series, standardised by the mean and scale of the training part.

    :ivar train: inputs ``(N, past)`` and targets ``(N, ahead)``.
    :ivar validation: the same, later.
    :ivar test: the same, later still.
    :ivar seasonal: the values one season before the targets of the test.
    """

    def __init__(self, found: Series) -> None:
        past, ahead, values = found.past, found.ahead, found.values
        count = len(values) - past - ahead + 1
        num_train = round(0.7 * count)
        known = values[: num_train + past + ahead - 1]
        self.series = found
        self.mean, self.scale = float(known.mean()), float(known.std())
        z = torch.as_tensor((values - self.mean) / self.scale, dtype=torch.float32)
        slices = z.unfold(0, past + ahead, 1)
        x, y = slices[:, :past].contiguous(), slices[:, past:].contiguous()
        cut, gap = num_train - num_train // 7, ahead - 1  # no target is in two parts
        self.train = (x[:cut], y[:cut])
        self.validation = (x[cut + gap : num_train], y[cut + gap : num_train])
        self.test = (x[num_train + gap :], y[num_train + gap :])
        start = torch.arange(num_train + gap, count)[:, None] + past + torch.arange(ahead)
        self.seasonal = z[(start - found.season).clamp(min=0)]


def make_model(past: int, ahead: int, num_data: int, scale: Any, local: bool) -> Any:
    """N-BEATS as a Pyro program, and its network."""
    net = BayesianModule(NBeats(past, ahead), prior=dist.Normal(0.0, 1.0), local=local)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        shared = None if local else net(x)
        with pyro.plate("windows", num_data, subsample_size=len(x)):
            f = net(x) if local else shared
            f = pyro.deterministic("f", f, event_dim=1)
            pyro.sample("y", dist.Normal(f, scale()).to_event(1), obs=y)

    return model, net


def make_guide(method: str, model: Any, net: BayesianModule) -> Any:
    """The posterior model of a method."""
    start = {"init_loc_fn": net.init_to_module}
    if method == "maximum likelihood":
        return AutoDelta(model, **start)
    if method == "mean-field":
        return AutoNormal(model, init_scale=0.01, **start)
    settings: dict[str, Any] = {"noise_dim": 4, "hidden_dims": (16,), "activation": "relu"}
    settings |= {"scale": 0.0, "init_scale": 0.02, **start}
    kind = ConditionalHyperNetworkGuide if method == "conditional" else HyperNetworkGuide
    return kind(model, **settings)


@torch.no_grad()
def draws(model: Any, guide: Any, x: Tensor, num_draws: int) -> Tensor:
    """Draws of the forecasts, shape ``(S, N, ahead)``."""
    options = {"num_samples": num_draws, "sites": ["f"], "parallel": True, "batch_size": 32}
    with pyro.validation_enabled(False):
        return predict(model, guide, x, **options)["f"]


def log_predictive(f: Tensor, y: Tensor, scale: float) -> float:
    """Mean over windows of the log of the mean over draws of the density of a window."""
    log_p = dist.Normal(f, scale).log_prob(y).sum(-1)
    return (log_p.logsumexp(0) - math.log(len(f))).mean().item()


def fit(
    name: str, method: str, windows: Windows, num_particles: int, epochs: Any
) -> tuple[Tensor, float, int]:
    """Draws at the test windows, the scale of the noise, and the epoch that they are from."""
    x, y = windows.train
    batch = SETTINGS["batch_size"][name]
    per_epoch = -(-len(x) // batch)
    scale = Annealed(1.0, SETTINGS["scale"], max(1, len(epochs) * per_epoch // 2))
    past, ahead = x.shape[1], y.shape[1]
    model, net = make_model(past, ahead, len(x), scale, method == "conditional")
    guide = make_guide(method, model, net)
    objective: Any = loss("per_datum", num_particles)
    if method in ("maximum likelihood", "mean-field"):
        count = 1 if method == "maximum likelihood" else num_particles
        objective = Trace_ELBO(count, vectorize_particles=count > 1, max_plate_nesting=1)
        model = without_prior(model) if method == "maximum likelihood" else model
    rate = SETTINGS["lr"].get(method, SETTINGS["lr"]["other"])
    decay = 0.1 ** (1 / (len(epochs) * per_epoch))
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": rate, "lrd": decay}), objective)
    stopping = EarlyStopping(patience=10**6, mode="max")
    count = 1 if method == "maximum likelihood" else SETTINGS["num_draws"]
    every = max(1, len(epochs) // SETTINGS["num_checks"])
    best_f: Any = None
    for epoch in epochs:
        for rows in torch.randperm(len(x)).split(batch):
            svi.step(x[rows], y[rows])
            scale.step()
        if epoch % every == every - 1:
            f = draws(model, guide, windows.validation[0], count)
            scores = {s: log_predictive(f, windows.validation[1], s) for s in SETTINGS["scales"]}
            stopping.step(max(scores.values()), guide)
            if stopping.best_step == stopping.num_steps - 1:
                best_f = max(scores, key=scores.__getitem__), epoch + 1
    stopping.restore(guide)
    return draws(model, guide, windows.test[0], count), *best_f


def without_prior(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model without the density of its latents: what maximum likelihood maximises."""

    class NoPrior(pyro.poutine.messenger.Messenger):
        def _pyro_sample(self, msg: Any) -> None:
            if not msg["is_observed"] and not pyro.poutine.util.site_is_subsample(msg):
                msg["mask"] = False

    def bare(*args: Any, **kwargs: Any) -> Any:
        with NoPrior():
            return model(*args, **kwargs)

    return bare


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


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    settings = copy.deepcopy(SETTINGS) | {"num_particles": arguments.num_particles}
    settings |= {"epochs": arguments.epochs}
    rows: list[dict[str, Any]] = []
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
                    f, sigma, epoch = fit(*job)
                    found = scores(f, windows.test[1], sigma, windows)
                row = {"series": name, "method": method, "seed": seed, "epoch": epoch, **found}
                rows.append(row | {"noise": sigma, "cpu_seconds": watch.cpu_seconds})
                write_record("forecasting", arguments, settings, rows)
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
    options = parser(__doc__ or "", seeds=range(5), methods=METHODS)
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
