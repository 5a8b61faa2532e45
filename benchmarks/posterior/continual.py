"""Does yesterday's posterior as today's prior keep what was learned, task after task?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.optim import ClippedAdam
from torch import Tensor, nn
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, load_npz, parse, parser
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, posterior_draws
from pyro_implicit.bayesian import JointPrior
from pyro_implicit.inference import prior_from

DESCRIPTION = """\
Split digits: five tasks, one after the other, each to tell two digits apart (0 or 1, 2 or 3, ...)
with the same output and the same network, 16 hidden units; no task's data are kept. The
bundled digits of scikit-learn (8 x 8), or MNIST below --data-root. Accuracy on the test data of all
five tasks at the end, and how far it fell from when a task was learned (forgetting)."""

SETTINGS: dict[str, Any] = {"steps": 250, "particles": 4, "rate": 0.02, "draws": 100}
METHODS = {
    "no update": "implicit, the first prior for each task, started at the last posterior",
    "mean field": "AutoNormal, Trace_ELBO, its moments carried on (VCL)",
    "implicit, diagonal": "HyperNetworkGuide, LinearisedELBO, variances carried on",
    "implicit, low rank": "the same, and covariances in 10 directions",
    "all data": "HyperNetworkGuide on the data of all tasks so far",
}
Row = dict[str, Any]


@dataclass
class Task:
    """Two digits: inputs and whether it is the second of the two."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, methods=METHODS)
    options.add_argument("--data", choices=("digits", "mnist"), default="digits")
    arguments = parse(options, argv)
    rows: list[Row] = []
    todo = [(m, s) for s in arguments.seeds for m in arguments.methods]
    with pyro.validation_enabled(False):
        for method, seed in tqdm(todo, disable=arguments.quiet):
            with fixed_seed(seed):
                tasks = load(arguments, seed)
                rows += learn(method, tasks, seed)
            write_record("continual", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def load(arguments: Any, seed: int) -> list[Task]:
    """The five tasks; a third of the rows is for testing, chosen by the seed."""
    if arguments.data == "mnist":
        arrays = load_npz(arguments.data_root, "mnist.npz")
        images = np.concatenate([arrays["x_train"], arrays["x_test"]]) / 255.0
        digits = np.concatenate([arrays["y_train"], arrays["y_test"]])
    else:
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        images = images / 16.0
    x = torch.from_numpy(np.asarray(images)).float().reshape(len(images), -1)
    y = torch.from_numpy(np.asarray(digits)).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    tasks = []
    for first in range(0, 10, 2):
        mine = order[(y[order] == first) | (y[order] == first + 1)]
        part = x[mine] - 0.5, (y[mine] - first).float()
        cut = len(mine) // 3
        tasks.append(Task((part[0][cut:], part[1][cut:]), (part[0][:cut], part[1][:cut])))
    return tasks


def learn(method: str, tasks: list[Task], seed: int) -> list[Row]:
    """One row for each task, once it is learned, with the accuracies on all tasks."""
    width = tasks[0].train[0].shape[1]
    network = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1))
    normal = JointPrior(_sites(network), *_flat(network))
    prior, guide, rows = None, None, []
    for number, task in enumerate(tasks):
        begin = time.process_time()
        data = task.train
        if method == "all data":
            data = tuple(
                torch.cat(part)
                for part in zip(*(t.train for t in tasks[: number + 1]), strict=True)
            )
        net = BayesianModule(network, prior=dist.Normal(0.0, 1.0) if prior is None else prior)
        model = classifier(net)
        start = normal if guide is None else prior_from(guide, num_samples=300, seed=0)
        guide = train(method, model, start, data)
        if method not in ("no update", "all data"):
            form = "low-rank" if method.endswith("low rank") else "diagonal"
            prior = prior_from(guide, form=form, num_samples=500, seed=0)
        scores = [score(net, guide, other.test) for other in tasks]
        rows.append(
            {
                "method": method,
                "seed": seed,
                "task": number,
                "accuracies": [accuracy for accuracy, _ in scores],
                "log_densities": [density for _, density in scores],
                "cpu_seconds": time.process_time() - begin,
            }
        )
    return rows


def classifier(net: BayesianModule) -> Callable[..., None]:
    """A Bernoulli likelihood of all rows."""

    def model(x: Tensor, y: Tensor) -> None:
        logits = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return model


def _sites(network: nn.Module) -> tuple[Any, ...]:
    """The sites of the network, as a fitted guide would tell them."""
    guide = AutoNormal(BayesianModule(network, prior=dist.Normal(0.0, 1.0)))
    guide(torch.zeros(1, next(network.parameters()).shape[1]))
    return prior_from(guide).sites


def _flat(network: nn.Module) -> tuple[Tensor, Tensor]:
    """Where the first task begins: at the initialisation, with small deviations."""
    loc = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    return loc, torch.full_like(loc, 0.03)


def train(method: str, model: Any, start: JointPrior, data: tuple[Tensor, ...]) -> Any:
    """A guide that begins as the Gaussian ``start`` and is fitted to one task."""
    pyro.clear_param_store()
    assert start.scale is not None
    parts = start.loc.split([site.numel for site in start.sites])
    values = {s.name: p.reshape(s.shape) for s, p in zip(start.sites, parts, strict=True)}
    gaussian = AutoNormal(model, init_loc_fn=init_to_value(values=values))
    gaussian(*data)
    for site, scale in zip(start.sites, start.scale.split([len(p) for p in parts]), strict=True):
        _set_scale(gaussian, site.name, scale.reshape(site.shape))
    count = SETTINGS["particles"]
    if method == "mean field":
        guide: Any = gaussian
        objective: Any = Trace_ELBO(count, vectorize_particles=True, max_plate_nesting=1)
    else:
        guide = HyperNetworkGuide(model, init_from=gaussian)
        guide.setup(*data)
        objective = LinearisedELBO(count, vectorize_particles=True, max_plate_nesting=1)
    steps = SETTINGS["steps"]
    cooling = 0.03 ** (1 / max(steps, 1))
    optimiser = ClippedAdam({"lr": SETTINGS["rate"], "lrd": cooling})
    svi = SVI(model, guide, optimiser, objective)
    for _ in range(steps):
        svi.step(*data)
    return guide


def _set_scale(guide: AutoNormal, name: str, scale: Tensor) -> None:
    """Sets the deviations of one site of a mean-field guide."""
    owner: Any = guide.scales
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, scale)


@torch.no_grad()
def score(net: BayesianModule, guide: Any, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Accuracy and mean log density of the averaged predictions."""
    x, y = data
    draws = posterior_draws(guide, SETTINGS["draws"], x, y)
    total = torch.zeros(len(x))
    for s in range(SETTINGS["draws"]):
        weights = {name: value[s] for name, value in draws.items()}
        logits = torch.func.functional_call(net.module, weights, (x,)).squeeze(-1)
        total = total + logits.sigmoid() / SETTINGS["draws"]
    p = torch.where(y == 1, total, 1 - total).clamp(min=1e-6)
    return float(((total > 0.5).float() == y).float().mean()), float(p.log().mean())


def table(rows: list[Row]) -> str:
    """Means over seeds: at the end, on all tasks."""
    header = ["method", "accuracy at the end", "worst seed", "when learned", "forgetting"]
    header += ["log density", "CPU s a task"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        ends = [row for row in mine if row["task"] == max(r["task"] for r in mine)]
        final = [statistics.fmean(row["accuracies"]) for row in ends]
        learned = [row["accuracies"][row["task"]] for row in mine]
        fallen = [
            row["accuracies"][row["task"]] - end["accuracies"][row["task"]]
            for row in mine
            for end in ends
            if end["seed"] == row["seed"] and row["task"] < end["task"]
        ]
        lines.append(
            [
                method,
                f"{statistics.fmean(final):.1%}",
                f"{min(final):.1%}",
                f"{statistics.fmean(learned):.1%}",
                f"{statistics.fmean(fallen):.1%}" if fallen else "",
                f"{statistics.fmean(statistics.fmean(r['log_densities']) for r in ends):.3f}",
                f"{statistics.fmean(row['cpu_seconds'] for row in mine):.1f}",
            ]
        )
    return format_table(header, lines)
