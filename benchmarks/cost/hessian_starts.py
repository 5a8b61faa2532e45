"""
Starts from averaged Hessians: how many are enough, and how good a start they make.

For each model and seed, from one mean-field fit: the way of before (twelve independent draws, each
with its eigenvalues clamped at 0) and that of init_from="hessian" (pairs of draws in units of the
fit, blended with it, until the bound is level). A guide then begins as each, and is trained for
some steps. None of the models is that of the benchmark of speed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.guides.initialization.blended_curvature import blended_curvature
from pyro_implicit.guides.initialization.curvature import (
    hessian,
    inverse_root,
)
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.guides.initialization.mean_field import MeanField, fit_mean_field_near
from pyro_implicit.handlers.log_joint import LogJoint

SETTINGS: dict[str, Any] = {"steps": 150, "rate": 1e-3, "draws": 4, "judges": 64, "before": 12}
BEFORE, NOW = "twelve independent draws", "pairs, blended"
Model = tuple[Callable[..., Any], tuple[Tensor, ...]]
Row = dict[str, Any]


def _network(layers: Sequence[nn.Module], likelihood: Any, x: Tensor, y: Tensor) -> Model:
    net = BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", likelihood(f), obs=y)

    return model, (x, y)


def _diabetes() -> Model:
    from sklearn.datasets import load_diabetes

    x, y = (torch.tensor(part).float() for part in load_diabetes(return_X_y=True))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    layers = [nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1), nn.Flatten(0)]
    return _network(layers, lambda f: dist.Normal(f, 0.7), x, y)


def _moons() -> Model:
    from sklearn.datasets import make_moons

    x, y = make_moons(300, noise=0.2, random_state=0)
    layers = [nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2)]
    data = torch.tensor(x).float(), torch.tensor(y)
    return _network(layers, lambda f: dist.Categorical(logits=f), *data)


def _digits() -> Model:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    data = torch.tensor(x[:600]).float() / 16, torch.tensor(y[:600])
    layers = [nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)]
    return _network(layers, lambda f: dist.Categorical(logits=f), *data)


def _wines() -> Model:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    data = torch.tensor((x - x.mean(0)) / x.std(0)).float(), torch.tensor(y)
    layers = [nn.Linear(13, 12), nn.Tanh(), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)]
    return _network(layers, lambda f: dist.Categorical(logits=f), *data)


def _friedman() -> Model:
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(200, 10, noise=1.0, random_state=3)
    data = torch.tensor(2 * x - 1).float(), torch.tensor((y - y.mean()) / y.std()).float()
    layers = [nn.Linear(10, 25), nn.Tanh(), nn.Linear(25, 1), nn.Flatten(0)]
    return _network(layers, lambda f: dist.Normal(f, 0.25), *data)


def _tumours() -> Model:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    data = torch.tensor((x - x.mean(0)) / x.std(0)).float()[:300], torch.tensor(y)[:300]
    layers = [nn.Linear(30, 27), nn.ReLU(), nn.Linear(27, 2)]
    return _network(layers, lambda f: dist.Categorical(logits=f), *data)


def _counts() -> Model:
    """Poisson counts in 60 groups whose levels have a common scale."""
    group, x = torch.randint(60, (400,)), torch.randn(400)
    y = torch.poisson((0.5 * x + 0.7 * torch.randn(60)[group] + 0.3).exp())

    def model(x: Tensor, y: Tensor) -> None:
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        level = pyro.sample("level", dist.Normal(torch.zeros(60), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            rate = (w[0] + w[1] * x + scale * level[group]).exp()
            pyro.sample("y", dist.Poisson(rate), obs=y)

    return model, (x, y)


MODELS: dict[str, Callable[[], Model]] = {
    "counts in groups": _counts,
    "diabetes, 1 layer": _diabetes,
    "moons, 2 layers": _moons,
    "digits, 1 layer": _digits,
    "wines, 2 layers": _wines,
    "Friedman, 1 layer": _friedman,
    "tumours, 1 layer": _tumours,
}


def before(density: LogJoint, fit: MeanField, count: int) -> tuple[Tensor, int]:
    """The average of clamped Hessians at independent draws, and their number."""
    total = torch.zeros_like(fit.loc)
    for _ in range(count):
        matrix = -hessian(density.value, fit.loc + fit.scale * torch.randn_like(fit.loc))
        values, vectors = torch.linalg.eigh(matrix)
        total = total + (vectors * values.clamp(min=0.0)) @ vectors.mT
    return total / count, count


def now(density: LogJoint, fit: MeanField, count: int) -> tuple[Tensor, int]:
    """The precision of ``init_from="hessian"``, and the number of Hessians that it took."""
    return blended_curvature(density, fit.loc, fit.scale, count, gauss_newton=False)


WAYS: dict[str, Callable[..., tuple[Tensor, int]]] = {BEFORE: before, NOW: now}


def compare(name: str, seed: int, settings: dict[str, Any]) -> list[Row]:
    """A row for each way, from one mean-field fit."""
    rows = []
    with fixed_seed(seed), pyro.validation_enabled(False):
        model, args = MODELS[name]()
        sites = HyperNetworkGuide(model, init_from=None).setup(*args).sites
        density = LogJoint(model, sites, args, {})
        start = 0.1 * torch.randn(sum(site.numel for site in sites))
        fit = fit_mean_field_near(density.value, [start])
        for way, make in WAYS.items():
            torch.manual_seed(seed)
            begin = time.process_time()
            precision, used = make(density, fit, settings["before"])
            spent = time.process_time() - begin
            root = inverse_root(precision)
            row = {"model": name, "latents": len(start), "seed": seed, "way": way}
            row |= {"hessians": used, "cpu_s": spent}
            row["bound"] = objective(density.value, fit.loc, root, settings["judges"])
            row["trained"] = _trained(model, args, fit.loc, root, settings, seed)
            rows.append(row)
    return rows


def _trained(
    model: Any, args: Any, loc: Tensor, root: Tensor, settings: dict[str, Any], seed: int
) -> float:
    """Minus the loss after some steps of a guide that began as a Gaussian."""
    gaussian = AutoMultivariateNormal(model)
    gaussian(*args)
    triangle = torch.linalg.cholesky(root.double() @ root.double().mT).float()
    with torch.no_grad():
        gaussian.loc.copy_(loc)
    gaussian.scale = triangle.diagonal().clone()
    gaussian.scale_tril = triangle / triangle.diagonal()[:, None]
    pyro.clear_param_store()
    guide = HyperNetworkGuide(model, init_from=gaussian).setup(*args)
    pyro.set_rng_seed(seed)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": settings["rate"]}), _loss(settings["draws"]))
    for _ in range(settings["steps"]):
        svi.step(*args)
    pyro.set_rng_seed(seed)
    with torch.no_grad():
        return -float(_loss(settings["judges"]).loss(model, guide, *args))


def _loss(num_draws: int) -> LinearisedELBO:
    return LinearisedELBO(num_draws, vectorize_particles="vmap", watch_folds=0)


def table(rows: list[Row]) -> str:
    """One line for each model and way, medians over seeds."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["latents"], row["way"]), []).append(row)
    lines = []
    for (name, latents, way), own in groups.items():
        median = {
            key: statistics.median(row[key] for row in own)
            for key in ("hessians", "cpu_s", "bound", "trained")
        }
        each = ", ".join(f"{row['bound']:.0f}" for row in own)
        cells = [f"{median['hessians']:g}", f"{median['cpu_s']:.2f}"]
        lines.append([name, latents, way, *cells, each, f"{median['trained']:.1f}"])
    header = ["model", "latents", "way", "Hessians", "CPU s", "bound, by seed", "after training"]
    return format_table(header, lines)


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0, 1, 2])
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parse(options, argv)
    rows: list[Row] = []
    todo = [(name, seed) for name in arguments.models for seed in arguments.seeds]
    for name, seed in tqdm(todo, disable=arguments.quiet):
        rows += compare(name, seed, SETTINGS)
        write_record("hessian_starts", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
