"""Chains from modes on classifiers of digits, beside modes, guides and mean-field VI."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate
from tqdm.auto import tqdm

from benchmarks.common import (
    Stopwatch,
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    stopwatch,
)
from benchmarks.networks import LeNet
from benchmarks.records import write_record
from benchmarks.shared.image_fits import standardised
from benchmarks.shared.images import digits_layers, load_mnist
from pyro_implicit import BayesianModule, HyperNetworkGuide, evaluate, fit, refine

DESCRIPTION = """\
Classifiers of digits under standard normal priors on all weights: accuracy, negative log-likelihood
and calibration error of test images, upright and rotated by 60 degrees.

map                 the first mode
ensemble            all modes, equally weighted
mean-field          fit(model, AutoNormal(model), ...) with Trace_ELBO
implicit            fit(model, HyperNetworkGuide(model), ...); nothing else given but its steps
refine              chains that begin at the modes
refine, from guide  chains that begin at draws of the implicit guide

digits   1437 of scikit-learn's digits, two max-pooled convolutions, 1898 weights; 360 to test
lenet    the first 1000 digits of MNIST, LeNet, 44 426 weights; the first 5000 of its test part"""

MODELS = ("digits", "lenet")
CHAINS = {"refine": "modes", "refine, from guide": "implicit"}
METHODS = ("map", "ensemble", "mean-field", "implicit", *CHAINS)
ANGLES = (0, 60)
SCORES = ("accuracy", "nll", "ece")
SETTINGS: dict[str, Any] = {
    "num_chains": {"digits": 8, "lenet": 8},
    "mode_steps": {"digits": 600, "lenet": 200},
    "num_steps": {"digits": 1000, "lenet": 400},  # gradients of each chain, half for the warm-up
    "lenet_train": 1000,
    "lenet_test": 5000,
    "max_steps": {"digits": 1200, "lenet": 500},  # of fits
    "particles": 4,  # of mean-field
    "num_draws": 200,
    "r_hat_draws": 320,
}
Row = dict[str, Any]
Model = Callable[..., Any]


@dataclass(frozen=True)
class Images:
    """A model, the images and labels that it is fitted to, and those to judge by."""

    model: Model
    data: tuple[Tensor, Tensor]
    x_test: Tensor
    y_test: Tensor


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0, 1, 2], methods=METHODS)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--validation", action="store_true", help="score a fifth of training rows")
    arguments = parse(options, argv)
    rows: list[Row] = []
    with pyro.validation_enabled(False):
        for row in run(arguments):
            rows.append(row)
            write_record("refine_images", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each model, seed and method."""
    todo = [(name, seed) for name in arguments.models for seed in arguments.seeds]
    for name, seed in tqdm(todo, disable=arguments.quiet):
        with fixed_seed(seed):
            parts = _parts(name, seed, arguments.data_root)
            images = _classifier(name, *(_validation(*parts) if arguments.validation else parts))
        for method, posterior, watch, more in _posteriors(name, images, seed, arguments.methods):
            with fixed_seed(seed):
                scores = _scores(images, posterior)
            row = {"model": name, "seed": seed, "method": method, "r_hat": None}
            yield row | scores | more | vars(watch)


# ---- models


def _parts(name: str, seed: int, root: Path) -> tuple[Tensor, ...]:
    """Images and labels to fit, and those to score."""
    if name == "lenet":
        data = load_mnist(root, download=False)
        train, test = SETTINGS["lenet_train"], SETTINGS["lenet_test"]
        x, x_test = (standardised(data[f"x_{part}"]) for part in ("train", "test"))
        return x[:train], data["y_train"][:train], x_test[:test], data["y_test"][:test]
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(bunch.target)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=seed, stratify=y)
    return x, y, x_test, y_test


def _validation(x: Tensor, y: Tensor, *test: Tensor) -> tuple[Tensor, ...]:
    """The last fifth of the training rows in the place of the test's."""
    count = len(x) * 4 // 5
    return x[:count], y[:count], x[count:], y[count:]


def _classifier(name: str, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Images:
    module = LeNet() if name == "lenet" else nn.Sequential(*digits_layers())
    net = BayesianModule(module, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        logits = net(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return Images(model, (x, y), x_test, y_test)


# ---- posteriors

Found = tuple[str, Any, Stopwatch, Row]


def _posteriors(name: str, images: Images, seed: int, chosen: Sequence[str]) -> Iterator[Found]:
    """Each method's posterior, its time with all that it starts from, and what else is told."""
    options = {"num_chains": SETTINGS["num_chains"][name], "seed": seed, "progress": False}
    starts: dict[str, tuple[Any, Stopwatch, int]] = {}
    if {"map", "ensemble", "refine"} & set(chosen):
        count = SETTINGS["num_chains"][name]
        steps = {"num_steps": 0, "mode_steps": SETTINGS["mode_steps"][name]}
        with stopwatch() as watch:
            modes = refine(images.model, count, *images.data, **steps, **options)
        starts["modes"] = modes.by_chain[:, 0], watch, modes.num_gradients
        if "map" in chosen:
            one = Stopwatch(watch.seconds / count, watch.cpu_seconds / count)
            yield "map", modes.split()[0], one, {"gradients": modes.num_gradients // count}
        if "ensemble" in chosen:
            yield "ensemble", modes, watch, {"gradients": modes.num_gradients}
    if "mean-field" in chosen:
        elbo = Trace_ELBO(SETTINGS["particles"], vectorize_particles=True)
        guide: Any = AutoNormal(images.model)
        yield "mean-field", guide, *_fitted(name, images, guide, seed, elbo)
    if {"implicit", "refine, from guide"} & set(chosen):
        guide = HyperNetworkGuide(images.model)
        watch, told = _fitted(name, images, guide, seed, None)
        starts["implicit"] = guide, watch, 0
        if "implicit" in chosen:
            yield "implicit", guide, watch, told
    for method in [method for method in CHAINS if method in chosen]:
        start, before, spent = starts[CHAINS[method]]
        with stopwatch() as watch:
            steps = {"num_steps": SETTINGS["num_steps"][name]}
            chains = refine(images.model, start, *images.data, **steps, **options)
        total = Stopwatch(before.seconds + watch.seconds, before.cpu_seconds + watch.cpu_seconds)
        told = {"gradients": spent + chains.num_gradients, "how": chains.how}
        yield method, chains, total, told | {"r_hat": _r_hat(images, chains)}


def _fitted(
    name: str, images: Images, guide: Any, seed: int, objective: Any
) -> tuple[Stopwatch, Row]:
    with stopwatch() as watch:
        options = {"objective": objective, "num_steps": SETTINGS["max_steps"][name]}
        result = fit(images.model, guide, *images.data, seed=seed, progress=False, **options)
    used = type(result.objective).__name__
    return watch, {"note": f"{result.num_steps} steps of {used}, {result.reason}"}


# ---- scores


def _scores(images: Images, posterior: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for angle in ANGLES:
        x = rotate(images.x_test, angle, InterpolationMode.BILINEAR)
        draws = SETTINGS["num_draws"]
        report = evaluate(
            images.model, posterior, x, images.y_test, num_samples=draws, batch_size=500
        )
        found |= {f"{score}_{angle}": getattr(report, score).value for score in SCORES}
    return found


def _r_hat(images: Images, chains: Any) -> dict[str, float]:
    """Of the probabilities of test images: the median and the worst."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is above 1.1: it is in the table
        found = chains.predictive_r_hat(images.x_test[:100], num_samples=SETTINGS["r_hat_draws"])
    values = found["y"]
    values = values[values.isfinite()]  # not those of classes that no draw ever gives
    return {"median": float(values.median()), "worst": float(values.max())}


def table(rows: list[Row]) -> str:
    """Means over seeds, with the standard error if there are several."""
    keys = [f"{score}_{angle}" for angle in ANGLES for score in SCORES]
    lines = []
    for name, method in dict.fromkeys((row["model"], row["method"]) for row in rows):
        own = [row for row in rows if (row["model"], row["method"]) == (name, method)]
        cells = [mean_and_error([row[key] for row in own], ".3f", ".3f") for key in keys]
        known = [row["r_hat"]["median"] for row in own if row["r_hat"] is not None]
        r_hat = mean_and_error(known, ".2f", ".2f") if known else ""
        seconds = sum(row["cpu_seconds"] for row in own) / len(own)
        lines.append([name, method, len(own), *cells, r_hat, f"{seconds:.0f}"])
    header = [
        "accuracy",
        "NLL",
        "ECE",
        *(f"{name}, rotated" for name in ("accuracy", "NLL", "ECE")),
    ]
    return format_table(["model", "method", "fits", *header, "r-hat", "CPU s"], lines)


if __name__ == "__main__":
    main()
