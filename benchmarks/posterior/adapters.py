"""What does a posterior over low-rank adapters of a large frozen network bring, and cost?"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from torchmetrics.functional.classification import binary_calibration_error
from tqdm.auto import tqdm

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    mean_and_spread,
    parse,
    parser,
)
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, evaluate, fit
from pyro_implicit.bayesian import last_layer, with_adapters

__all__ = ["METHODS", "SETTINGS", "digits", "main", "run", "table", "trained"]

DESCRIPTION = """\
Trains a perceptron of 17 million weights on 300 of scikit-learn's digits by Adam, freezes it, lays
a posterior over few numbers of it by the same digits, and scores 897 others.

network     the frozen network alone, no posterior
last layer  HyperNetworkGuide of the last layer's weights, what is before it frozen
AutoNormal  Pyro's, of adapters of each layer, from the network's own function and narrow
implicit    HyperNetworkGuide(model), of the same adapters

The posteriors are fitted by fit(model, guide, x, y) with no other argument but the limit of steps,
and for AutoNormal the objective: as many draws a step as fit gives the others, vectorised."""

SETTINGS: dict[str, Any] = {
    "hidden": 4096,
    "train": 300,  # rows; network and posterior see the same
    "test": 897,
    "epochs": 20,  # of the network
    "batch": 100,
    "lr": 1e-4,
    "rank": 1,
    "prior": 1.0,  # deviation, of every latent
    "steps": 150,
    "particles": 2,  # of AutoNormal
    "draws": 20,  # of the scores
}
Row = dict[str, Any]
Model = Callable[..., Any]
Fit = tuple[Model, Any, Any]  # model, guide, objective: None for that which ``fit`` chooses


@dataclass(frozen=True)
class Digits:
    """
    Rows to train on and rows to score: pixels and labels.

    :param torch.Tensor x: of training, ``(N, 64)``.
    :param torch.Tensor y: their labels.
    :param torch.Tensor test_x: of the scores.
    :param torch.Tensor test_y: their labels.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(parser(DESCRIPTION, seeds=[0, 1, 2], methods=METHODS), argv)
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("adapters", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each seed (of split, network and fit) and method."""
    made: dict[int, tuple[Digits, nn.Module, float]] = {}
    todo = [(seed, method) for seed in arguments.seeds for method in arguments.methods]
    for seed, method in tqdm(todo, disable=arguments.quiet):
        if seed not in made:
            made.clear()  # a network is large
            with fixed_seed(seed):
                data = digits()
                made[seed] = data, *trained(data)
        with fixed_seed(seed):
            yield {"method": method, "seed": seed} | _one(method, *made[seed])


def _one(method: str, data: Digits, network: nn.Module, seconds: float) -> Row:
    size = sum(parameter.numel() for parameter in network.parameters())
    made = METHODS[method]
    if made is None:
        told: Row = {"steps": 0, "cpu_seconds": seconds, "warnings": [], "note": "trained by Adam"}
        return _scores_alone(network, data) | {"latents": 0, "frozen": size} | told
    model, guide, objective = made(network)
    told = _fitted(model, guide, objective, data)
    latents = _latents(guide, data)
    frozen = size - latents if method == "last layer" else size
    return _scores(model, guide, data) | {"latents": latents, "frozen": frozen} | told


def _fitted(model: Model, guide: Any, objective: Any, data: Digits) -> Row:
    """Fits the guide, and tells what that took."""
    begin = time.process_time()
    limit = SETTINGS["steps"]
    options = {"objective": objective, "num_steps": limit, "progress": False}
    result = fit(model, guide, data.x, data.y, **options)
    used = result.objective
    return {
        "steps": result.num_steps,
        "cpu_seconds": time.process_time() - begin,
        "warnings": [str(text)[:200] for text in result.warnings],
        "note": f"{type(used).__name__}, {used.num_particles} draws",
    }


def _scores(model: Model, guide: Any, data: Digits) -> Row:
    found = evaluate(model, guide, data.test_x, data.test_y, num_samples=SETTINGS["draws"])
    return {name: getattr(found, name).value for name in ("accuracy", "nll", "ece")}


@torch.no_grad()
def _scores_alone(network: nn.Module, data: Digits) -> Row:
    """The same scores, by the network's own probabilities."""
    logits, labels = network(data.test_x), data.test_y
    confidence, choice = logits.softmax(-1).max(-1)
    right = (choice == labels).long()
    return {
        "accuracy": float(right.float().mean()),
        "nll": float(nn.functional.cross_entropy(logits, labels)),
        "ece": float(binary_calibration_error(confidence, right, n_bins=15, norm="l1")),
    }


@torch.no_grad()
def _latents(guide: Any, data: Digits) -> int:
    """How many numbers a guide draws."""
    return sum(value.numel() for value in guide(data.x, data.y).values())


# ---- the data, the network and the model


def digits() -> Digits:
    """
    Draws a split of scikit-learn's digits of 8 x 8 pixels.

    :returns: the rows, grey values from 0 to 1.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels))
    x = torch.tensor(pixels / 16, dtype=torch.float32)[order]
    y = torch.tensor(labels)[order]
    cut = SETTINGS["train"]
    end = len(x) - SETTINGS["test"]
    return Digits(x[:cut], y[:cut], x[end:], y[end:])


def trained(data: Digits) -> tuple[nn.Module, float]:
    """
    Trains the network, and freezes it.

    :param Digits data: of which the rows of training are seen.
    :returns: the network, and CPU seconds.
    """
    width, size = SETTINGS["hidden"], SETTINGS["batch"]
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(width, 10))
    begin = time.process_time()
    adam = torch.optim.Adam(network.parameters(), SETTINGS["lr"])
    for _ in range(SETTINGS["epochs"]):
        for rows in torch.randperm(len(data.x)).split(size):
            adam.zero_grad()
            nn.functional.cross_entropy(network(data.x[rows]), data.y[rows]).backward()
            adam.step()
    network.requires_grad_(False).eval()
    return network, time.process_time() - begin


def digits_model(network: Any) -> Model:
    """
    Makes a model of the labels of digits.

    :param network: random or not.
    :returns: the model.
    """

    def model(x: Tensor, y: Tensor | None = None) -> None:
        logits = network(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


# ---- the methods


def _adapted(network: nn.Module) -> BayesianModule:
    adapted = with_adapters(network, rank=SETTINGS["rank"])
    return BayesianModule(adapted, prior=dist.Normal(0.0, SETTINGS["prior"]))


def _implicit(network: nn.Module) -> Fit:
    model = digits_model(_adapted(network))
    return model, HyperNetworkGuide(model), None


def _mean_field(network: nn.Module) -> Fit:
    net = _adapted(network)
    model = digits_model(net)
    guide = AutoNormal(model, init_loc_fn=net.init_to_module, init_scale=0.01)
    draws = SETTINGS["particles"]
    return model, guide, Trace_ELBO(draws, vectorize_particles=True, max_plate_nesting=1)


def _last_layer(network: nn.Module) -> Fit:
    layer: Any = network[-1]  # type: ignore[index]
    layer.requires_grad_(True)
    try:
        prior = last_layer(network, dist.Normal(0.0, SETTINGS["prior"]))
        model = digits_model(BayesianModule(network, prior=prior))
    finally:
        layer.requires_grad_(False)
    return model, HyperNetworkGuide(model), None


METHODS: dict[str, Callable[[nn.Module], Fit] | None] = {
    "network": None,
    "last layer": _last_layer,
    "AutoNormal": _mean_field,
    "implicit": _implicit,
}


# ---- the table


def table(rows: list[Row]) -> str:
    """Means and standard deviations over seeds."""
    header = ["method", "latents", "frozen weights", "fits", "accuracy", "NLL"]
    header += ["NLL less the network's", "ECE", "steps", "CPU s", "note"]
    base = {row["seed"]: row["nll"] for row in rows if row["method"] == "network"}
    lines: list[list[Any]] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        group = [row for row in rows if row["method"] == method]
        less = [row["nll"] - base[row["seed"]] for row in group if row["seed"] in base]
        shown = less and method != "network"
        cells = [group[0]["latents"], group[0]["frozen"], len(group)]
        cells += [
            mean_and_spread([r["accuracy"] for r in group], ".3f"),
            mean_and_spread([r["nll"] for r in group], ".3f"),
        ]
        cells += [
            mean_and_error(less, "+.3f", ".3f") if shown else None,
            mean_and_spread([r["ece"] for r in group], ".3f"),
        ]
        cells += [f"{statistics.fmean(r[k] for r in group):.0f}" for k in ("steps", "cpu_seconds")]
        lines.append([method, *cells, group[0]["note"]])
    return format_table(header, lines)
