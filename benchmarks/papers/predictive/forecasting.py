"""
Monthly temperature of England, 1723 to 1970, three months ahead (section 3.4 of Dabrowski and
Pagendam; their table 3).

N-BEATS (one stack of 3 shared generic blocks, theta 32, width 64) sees 6 months and forecasts the
next 3. Trained by maximum likelihood, under an unconditioned and a conditional implicit posterior
(4 noises, 16 ReLU units; posterior-predictive loss per window), and under mean-field VI. The first
70% of the windows are for training, their last seventh for validation: the epoch, and the scale of
the Gaussian likelihood at prediction, are the best there.

What the paper leaves open: its windows (6 and 3 in the text, 24 and 12 in its table 2; neither
gives its 2960 pairs from the 2976 months), whether the split is by time (it is here), the units of
its errors (degrees here), and whether its RMSE is one number or a mean over windows (both here).

naive      the last value repeated; "seasonal": the value twelve months before
rmse       of the predictive mean over all values; "by window": mean over windows of their own
MAPE       mean absolute percentage error, which explodes near 0 degrees
CRPS       continuous ranked probability score of the draws, noise included
coverage   of central 90% intervals

--csv FILE takes another monthly series: one value per line, or the last column after a header.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
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

from benchmarks.common import fixed_seed, format_table, load_npz, parse, parser, positive, stopwatch
from benchmarks.networks import NBeats
from benchmarks.papers.predictive._predictive import loss
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, ConditionalHyperNetworkGuide, HyperNetworkGuide, predict
from pyro_implicit.training import Annealed, EarlyStopping

SETTINGS: dict[str, Any] = {
    "batch_size": 128,
    "lr": {"maximum likelihood": 0.01, "mean-field": 3e-3, "other": 1e-3},
    "scale": 0.25,
    "num_draws": 50,
    "scales": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0],
}
METHODS = ("maximum likelihood", "mean-field", "unconditioned", "conditional")


def series(arguments: Any) -> np.ndarray:
    """The values, oldest first."""
    if arguments.csv is None:
        data = load_npz(arguments.data_root, "cet_monthly.npz")
        return data["temp"][data["mask_1723_1970"]].astype(np.float64)
    lines = [line.split(",")[-1] for line in arguments.csv.read_text().splitlines() if line]
    try:
        float(lines[0])
    except ValueError:
        lines = lines[1:]
    return np.asarray([float(line) for line in lines])


class Windows:
    """
    Windows slid over a series, standardised by the mean and scale of the training part.

    :param values: the series.
    :param int past: inputs of a window.
    :param int ahead: outputs of a window.
    """

    def __init__(self, values: np.ndarray, past: int, ahead: int) -> None:
        count = len(values) - past - ahead + 1
        num_train = round(0.7 * count)
        known = values[: num_train + past + ahead - 1]
        self.mean, self.scale = float(known.mean()), float(known.std())
        z = torch.as_tensor((values - self.mean) / self.scale, dtype=torch.float32)
        slices = z.unfold(0, past + ahead, 1)
        x, y = slices[:, :past].contiguous(), slices[:, past:].contiguous()
        cut = num_train - num_train // 7
        self.train, self.validation = (x[:cut], y[:cut]), (x[cut:num_train], y[cut:num_train])
        self.test = (x[num_train:], y[num_train:])
        start = torch.arange(num_train, count)[:, None] + past + torch.arange(ahead)
        self.seasonal = z[(start - 12).clamp(min=0)]  # (test windows, ahead)


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


def fit(method: str, windows: Windows, arguments: Any, epochs: Any) -> tuple[Tensor, float, int]:
    """Draws at the test windows, the scale of the noise, and the epoch that they are from."""
    x, y = windows.train
    per_epoch = -(-len(x) // SETTINGS["batch_size"])
    scale = Annealed(1.0, SETTINGS["scale"], max(1, len(epochs) * per_epoch // 2))
    past, ahead = x.shape[1], y.shape[1]
    model, net = make_model(past, ahead, len(x), scale, method == "conditional")
    guide = make_guide(method, model, net)
    objective: Any = loss("per_datum", arguments.num_particles)
    if method in ("maximum likelihood", "mean-field"):
        count = 1 if method == "maximum likelihood" else arguments.num_particles
        objective = Trace_ELBO(count, vectorize_particles=count > 1, max_plate_nesting=1)
        model = without_prior(model) if method == "maximum likelihood" else model
    rate = SETTINGS["lr"].get(method, SETTINGS["lr"]["other"])
    decay = 0.1 ** (1 / (len(epochs) * per_epoch))
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": rate, "lrd": decay}), objective)
    stopping = EarlyStopping(patience=10**6, mode="max")
    count = 1 if method == "maximum likelihood" else SETTINGS["num_draws"]
    every = max(1, len(epochs) // 10)
    best_f: Any = None
    for epoch in epochs:
        for rows in torch.randperm(len(x)).split(SETTINGS["batch_size"]):
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
    """All measures, in degrees; ``sigma`` is the scale of the noise, None for point forecasts."""
    to_degrees = windows.scale
    error = (f.mean(0) - y) * to_degrees
    truth = y * to_degrees + windows.mean
    row: dict[str, float | None] = {
        "rmse": error.square().mean().sqrt().item(),
        "by window": error.square().mean(-1).sqrt().mean().item(),
        "MAPE": 100 * (error / truth).abs().mean().item(),
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
        row["CRPS"] = (((noisy - y).abs().mean(0) - spread) * to_degrees).mean().item()
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each fit."""
    header = [*rows[-1]]
    return format_table(header, [[row.get(name) for name in header] for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    windows = Windows(series(arguments), arguments.past, arguments.ahead)
    x, y = windows.test
    rows: list[dict[str, Any]] = [
        {"method": name, "seed": None, "epoch": None} | scores(f[None], y, None, windows)
        for name, f in (("naive", x[:, -1:].expand_as(y)), ("seasonal", windows.seasonal))
    ]
    for seed in arguments.seeds:
        for method in arguments.methods:
            epochs = trange(arguments.epochs, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                f, sigma, epoch = fit(method, windows, arguments, epochs)
                row = {"method": method, "seed": seed, "epoch": epoch}
                rows.append(row | scores(f, y, sigma, windows))
            rows[-1]["cpu seconds per epoch"] = watch.cpu_seconds / arguments.epochs
    print(table(rows))
    settings = copy.deepcopy(SETTINGS) | {"past": arguments.past, "ahead": arguments.ahead}
    settings |= {"epochs": arguments.epochs, "num_particles": arguments.num_particles}
    write_record("forecasting", arguments, settings, rows)
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=range(5), methods=METHODS)
    options.add_argument("--epochs", type=positive, default=100, help="(default: 100)")
    options.add_argument("--past", type=positive, default=6, help="months seen (default: 6)")
    options.add_argument("--ahead", type=positive, default=3, help="months (default: 3)")
    options.add_argument("--num-particles", type=positive, default=10, help="(default: 10)")
    options.add_argument("--csv", type=Path, metavar="FILE", help="another monthly series")
    return options


if __name__ == "__main__":
    main()
