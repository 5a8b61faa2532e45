"""Does yesterday's posterior as today's prior keep what was learned, task after task?"""

from __future__ import annotations

import copy
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
from torch.distributions import constraints
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, load_npz, parse, parser
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, posterior_draws
from pyro_implicit.bayesian import JointPrior
from pyro_implicit.bayesian.joint_site import JointSite
from pyro_implicit.inference import GuidePrior, prior_from

DESCRIPTION = """\
Split digits: five tasks, one after the other, each to tell two digits apart (0 or 1, 2 or 3, ...)
with the same output and the same network, 16 hidden units; no task's data are kept, but
the few of a coreset. The bundled digits of scikit-learn (8 x 8), or MNIST below --data-root.
Accuracy on the test data of all five tasks at the end, and how far it fell from when a task was
learned (forgetting)."""

SETTINGS: dict[str, Any] = {"steps": 250, "particles": 4, "rate": 0.02, "draws": 100, "coreset": 20}
METHODS = {
    "no update": "implicit, the first prior for each task, started at the last posterior",
    "mean field": "AutoNormal, Trace_ELBO, its moments carried on (VCL)",
    "implicit, diagonal": "HyperNetworkGuide, LinearisedELBO, variances carried on",
    "implicit, low rank": "the same, and covariances in 10 directions",
    "implicit, itself": "the guide whole, as GuidePrior",
    "mean field, coreset": "20 rows of each task kept, learned last of all before predictions",
    "implicit, coreset": "the same with covariances in 10 directions",
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
    learner = Learner(method, tasks[0].train[0].shape[1])
    rows: list[Row] = []
    for number, task in enumerate(tasks):
        begin = time.process_time()
        before = [other.train for other in tasks[:number]]
        learner.learn(task.train, before)
        scores = [score(learner.network, learner.draws(), other.test) for other in tasks]
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


class Learner:
    """One network that learns task after task."""

    def __init__(self, method: str, width: int) -> None:
        self.method = method
        self.network = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1))
        self.start = JointPrior(_sites(self.network), *_flat(self.network))
        self.prior: JointPrior | None = None
        self.guide: Any = None
        self.coreset: list[tuple[Tensor, ...]] = []
        #: the model in which guides are priors, and how each makes latents of its noise
        self.model: Any = None
        self.priors: list[GuidePrior] = []

    def learn(self, data: tuple[Tensor, ...], before: list[tuple[Tensor, ...]]) -> None:
        """Takes one task; the data of those before it are for the method that keeps all."""
        if self.method == "all data":
            data = _joined([*before, data])
        if self.method == "implicit, itself":
            self._learn_whole(data)
            return
        if self.method.endswith("coreset"):
            count = SETTINGS["coreset"]
            self.coreset.append(tuple(part[:count] for part in data))
            data = tuple(part[count:] for part in data)
        carried = self._fit(data, self.start, self.prior)
        self.guide = carried
        self.start = prior_from(carried, num_samples=300, seed=0)
        if self.method not in ("no update", "all data"):
            self.prior = self._carried(carried)
        if self.coreset:  # for predictions alone: what goes on has not seen it
            self.guide = copy.deepcopy(carried)
            pyro.clear_param_store()  # which has the original's under the names of the copy's
            descend(self.method, self._model(self.prior), self.guide, _joined(self.coreset))

    def _fit(self, data: tuple[Tensor, ...], start: JointPrior, prior: JointPrior | None) -> Any:
        return train(self.method, self._model(prior), start, data)

    def _model(self, prior: JointPrior | None) -> Any:
        normal = dist.Normal(0.0, 1.0)
        return classifier(BayesianModule(self.network, prior=normal if prior is None else prior))

    def _carried(self, guide: Any) -> JointPrior:
        low_rank = self.method in ("implicit, low rank", "implicit, coreset")
        form = "low-rank" if low_rank else "diagonal"
        return prior_from(guide, form=form, num_samples=500, seed=0)

    def _learn_whole(self, data: tuple[Tensor, ...]) -> None:
        if self.model is None:
            self.model = classifier(BayesianModule(self.network, prior=dist.Normal(0.0, 1.0)))
            start = self.start
        else:
            prior = GuidePrior(self.guide)
            self.priors.append(prior)
            self.model = prior(self.model)
            noise = torch.zeros(prior.noise_dim)
            site = JointSite(prior.noise_name, noise.shape, 1, constraints.real_vector)
            start = JointPrior([site], noise, torch.ones_like(noise))
        self.guide = train(self.method, self.model, start, data)

    def draws(self) -> dict[str, Tensor]:
        """Weights by name, draws in front."""
        width = next(self.network.parameters()).shape[1]
        data = torch.zeros(1, width), torch.zeros(1)
        found = posterior_draws(self.guide, SETTINGS["draws"], *data)
        for prior in reversed(self.priors):
            found = prior.transform_sample(found[prior.noise_name])
        return found


def _joined(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


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
    guide = gaussian
    if not method.startswith("mean field"):
        guide = HyperNetworkGuide(model, init_from=gaussian).setup(*data)
    descend(method, model, guide, data)
    return guide


def descend(method: str, model: Any, guide: Any, data: tuple[Tensor, ...]) -> None:
    """Trains a guide, as long and as quickly for all methods."""
    kind = Trace_ELBO if method.startswith("mean field") else LinearisedELBO
    objective = kind(SETTINGS["particles"], vectorize_particles=True, max_plate_nesting=1)
    steps = SETTINGS["steps"]
    cooling = 0.03 ** (1 / max(steps, 1))
    optimiser = ClippedAdam({"lr": SETTINGS["rate"], "lrd": cooling})
    svi = SVI(model, guide, optimiser, objective)
    for _ in range(steps):
        svi.step(*data)


def _set_scale(guide: AutoNormal, name: str, scale: Tensor) -> None:
    """Sets the deviations of one site of a mean-field guide."""
    owner: Any = guide.scales
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, scale)


@torch.no_grad()
def score(
    network: nn.Module, draws: dict[str, Tensor], data: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """Accuracy and mean log density of the averaged predictions."""
    x, y = data
    total = torch.zeros(len(x))
    for s in range(SETTINGS["draws"]):
        weights = {name: value[s] for name, value in draws.items()}
        logits = torch.func.functional_call(network, weights, (x,)).squeeze(-1)
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
