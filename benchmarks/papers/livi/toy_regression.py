"""
A curve with a gap: how much wider is the posterior where there are no data?

A well-posed sibling of the toy experiment of LIVI (appendix E.3): y = 0.5 x + 0.8 sin(1.2 pi x) and
noise of scale 0.15 (known), 70 inputs in [-2, -0.7] and [0.7, 2]; a 1-7-10-1 network with ELU and
N(0, 1) priors, 105 weights. Every guide starts at the same MAP fit. "ratio" is that of the standard
deviation of the network's output in the gap to that among the data.

adversarial, paper   prior-contrastive as in the paper: 20 draws, one hidden layer, 10 inner steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor, nn
from tqdm.auto import trange

from benchmarks.common import fixed_seed, format_table, parse, parser, positive, stopwatch
from benchmarks.records import write_record
from benchmarks.shared.bands import draw_bands
from pyro_implicit import (
    AdversarialELBO,
    BayesianModule,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
)

SETTINGS: dict[str, Any] = {
    "noise": 0.15,
    "lr": 3e-3,
    "map_steps": 1500,
    "num_particles": 8,
    "num_draws": 500,
    "warmup_steps": 300,
}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "mean-field": Trace_ELBO,
    "no KL": partial(LinearisedELBO, kl_weight=0.0),
    "linearised": LinearisedELBO,
    "lanczos": LanczosELBO,
    "kernel": KernelDensityRatioELBO,
    "kernel, published": partial(KernelDensityRatioELBO, published=True),
    "adversarial": AdversarialELBO,
    "adversarial, prior": partial(AdversarialELBO, contrast="prior"),
    "adversarial, paper": partial(
        AdversarialELBO,
        contrast="prior",
        num_samples=20,
        num_critic_steps=10,
        critic=lambda m: nn.Sequential(nn.Linear(m, 100), nn.ELU(), nn.Linear(100, 1)),
    ),
}
METHODS = (*OBJECTIVES, "NUTS")


def curve(x: Tensor) -> Tensor:
    """The noiseless function of ``(N, 1)`` inputs."""
    return 0.5 * x[:, 0] + 0.8 * torch.sin(1.2 * torch.pi * x[:, 0])


def data() -> tuple[Tensor, Tensor]:
    """The training set, from the random state."""
    side = torch.linspace(0.7, 2.0, 35)[:, None]
    x = torch.cat([-side.flip(0), side])
    return x, curve(x) + SETTINGS["noise"] * torch.randn(len(x))


def make_model() -> Callable[..., Any]:
    """The network as a Pyro model."""
    sizes = ((1, 7), (7, 10), (10, 1))
    layers = [part for a, b in sizes for part in (nn.Linear(a, b), nn.ELU())][:-1]
    net = BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = pyro.deterministic("f", net(x).squeeze(-1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, SETTINGS["noise"]), obs=y)

    return model


def train(model: Any, guide: Any, objective: Any, data: Any, steps: Any, lr: float) -> None:
    """Adam whose rate falls to a twentieth."""
    rate = {"lr": lr, "lrd": 0.05 ** (1 / len(steps))}
    svi = SVI(model, guide, pyro.optim.ClippedAdam(rate), objective)
    for _ in steps:
        svi.step(*data)


def fit(method: str, model: Any, train_data: Any, x: Tensor, steps: Any) -> tuple[Tensor, Any]:
    """Draws of the network's output at ``x``, shape ``(num_draws, N)``, and the objective."""
    pyro.clear_param_store()
    start = AutoDelta(model)
    train(model, start, Trace_ELBO(), train_data, range(SETTINGS["map_steps"]), 1e-2)
    values = {name: value.detach() for name, value in start.median().items()}
    count = SETTINGS["num_draws"]
    if method == "NUTS":
        kernel = NUTS(model, init_strategy=pyro.infer.autoguide.init_to_value(values=values))
        chain = MCMC(kernel, count, SETTINGS["warmup_steps"], disable_progbar=True)
        chain.run(*train_data)
        predictive = Predictive(model, chain.get_samples(), return_sites=["f"])
        return predictive(x)["f"].reshape(count, -1), None
    at = {"init_loc_fn": pyro.infer.autoguide.init_to_value(values=values)}
    guide: Any = AutoNormal(model, init_scale=0.05, **at)
    if method != "mean-field":
        guide = HyperNetworkGuide(model, init_scale=0.05, init_from=None, **at)
    fast = {"vectorize_particles": True, "max_plate_nesting": 1}
    objective = OBJECTIVES[method](SETTINGS["num_particles"], **fast)
    train(model, guide, objective, train_data, steps, SETTINGS["lr"])
    predictive = Predictive(model, guide=guide, num_samples=count, return_sites=["f"])
    with torch.no_grad():
        return predictive(x)["f"].reshape(count, -1), objective


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    x = torch.linspace(-3, 3, 241)[:, None]
    gap, inside = x[:, 0].abs() < 0.5, (x[:, 0].abs() > 0.8) & (x[:, 0].abs() < 1.9)
    rows: list[dict[str, Any]] = []
    shown: dict[str, Tensor] = {}
    train_data = (torch.empty(0), torch.empty(0))
    for seed in arguments.seeds:
        with fixed_seed(seed):
            train_data = data()
        for method in arguments.methods:
            steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                f, objective = fit(method, make_model(), train_data, x, steps)
            sd = f.std(0)
            accuracy = list(getattr(objective, "critic_accuracy", {}).values())
            row: dict[str, Any] = {"method": method, "seed": seed}
            row["rmse, data"] = (f.mean(0) - curve(x))[inside].square().mean().sqrt().item()
            row["rmse, gap"] = (f.mean(0) - curve(x))[gap].square().mean().sqrt().item()
            row["sd, data"], row["sd, gap"] = sd[inside].mean().item(), sd[gap].mean().item()
            row["ratio"] = row["sd, gap"] / row["sd, data"]
            row["critic right"] = f"{accuracy[0]:.0%}" if accuracy else ""
            rows.append(row | {"cpu_seconds": watch.cpu_seconds})
            shown[method] = f
    print(table(rows))
    write_record("toy_regression", arguments, SETTINGS, rows)
    if arguments.figure is not None:
        bands = {name: (f.mean(0), f.std(0)) for name, f in shown.items()}
        draw_bands(arguments.figure, train_data, (x, curve(x)), bands, columns=5, limit=3.0)
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS, figure="bands of the last seed")
    options.add_argument("--num-steps", type=positive, default=3000, help="(default: 3000)")
    return options


if __name__ == "__main__":
    main()
