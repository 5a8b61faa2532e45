"""
Two densities in the plane that no Gaussian fits: a banana and a mixture of two modes.

The default HyperNetworkGuide beside AutoMultivariateNormal: Wasserstein-1 distance of 1000 draws
to 1000 exact draws, and how far apart two sets of exact draws are (the floor). `--figure` shows the
draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, init_to_value
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from tqdm import trange

from benchmarks.common import fixed_seed, format_table, parse, parser, positive, stopwatch
from benchmarks.records import write_record
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, posterior_draws

SETTINGS: dict[str, Any] = {"lr": 5e-3, "last_lr": 2.5e-4, "num_particles": 32, "num_draws": 1000}
WEIGHTS = [0.4, 0.6]
MEANS = [[-2.0, 0.0], [2.0, 1.0]]
COVARIANCES = [[[0.5, 0.2], [0.2, 0.5]], [[0.6, -0.3], [-0.3, 0.4]]]


class Banana:
    """``x`` standard normal, ``y ~ N(x^2 - 1, 0.5)``; its log-evidence is 0."""

    def model(self) -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x**2 - 1, 0.5))

    def exact(self, n: int) -> Tensor:
        x = torch.randn(n)
        return torch.stack([x, x**2 - 1 + 0.5 * torch.randn(n)], -1)


class TwoModes:
    """A mixture of two correlated Gaussians whose means are 4 apart; its log-evidence is 0."""

    def components(self) -> dist.MultivariateNormal:
        return dist.MultivariateNormal(torch.tensor(MEANS), torch.tensor(COVARIANCES))

    def model(self) -> None:
        flat = dist.ImproperUniform(dist.constraints.real_vector, (), (2,))
        x = pyro.sample("x", flat)
        weights = dist.Categorical(torch.tensor(WEIGHTS))
        pyro.factor("mixture", dist.MixtureSameFamily(weights, self.components()).log_prob(x))

    def exact(self, n: int) -> Tensor:
        chosen = torch.multinomial(torch.tensor(WEIGHTS), n, replacement=True)
        return self.components().sample((n,))[torch.arange(n), chosen]


def wasserstein(a: Tensor, b: Tensor) -> float:
    """Wasserstein-1 distance of two equally large samples, by optimal assignment."""
    cost = torch.cdist(a.double(), b.double()).numpy()
    return float(cost[linear_sum_assignment(cost)].mean())


def fit(model: Callable[..., Any], guide: Any, objective: Any, steps: int, quiet: bool) -> Tensor:
    """Trains, and returns draws of shape ``(num_draws, 2)``."""
    gamma = (SETTINGS["last_lr"] / SETTINGS["lr"]) ** (1 / steps)
    optimiser = pyro.optim.ExponentialLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": SETTINGS["lr"]}, "gamma": gamma}
    )
    svi = SVI(model, guide, optimiser, objective)
    for _ in trange(steps, desc=type(guide).__name__, disable=quiet):
        svi.step()
        optimiser.step()
    draws = posterior_draws(guide, SETTINGS["num_draws"])
    return torch.cat([v.reshape(len(v), -1) for v in draws.values()], -1)


def run(
    target: Any, seed: int, steps: int, quiet: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One target, one seed: a row of the table and the draws."""
    fast: dict[str, Any] = {
        "num_particles": SETTINGS["num_particles"],
        "vectorize_particles": True,
        "max_plate_nesting": 0,
    }
    start = init_to_value(values={"x": torch.zeros(2)}) if isinstance(target, TwoModes) else None
    options = {} if start is None else {"init_loc_fn": start}
    with fixed_seed(seed), stopwatch() as watch:
        implicit = fit(
            target.model,
            HyperNetworkGuide(target.model, init_from=None),
            LinearisedELBO(**fast),
            steps,
            quiet,
        )
    with fixed_seed(seed):
        guide = AutoMultivariateNormal(target.model, **options)
        gaussian = fit(target.model, guide, Trace_ELBO(**fast), steps, quiet)
        exact = target.exact(SETTINGS["num_draws"])
        floor = wasserstein(target.exact(SETTINGS["num_draws"]), exact)
    row = {
        "target": type(target).__name__,
        "seed": seed,
        "implicit": wasserstein(implicit, exact),
        "AutoMultivariateNormal": wasserstein(gaussian, exact),
        "floor": floor,
        "seconds": watch.seconds,
    }
    return row, {"exact": exact, "implicit": implicit, "AutoMultivariateNormal": gaussian}


def draw_figure(path: Path, draws: dict[str, dict[str, Tensor]]) -> None:
    """One row of scatter plots per target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(draws), 3, figsize=(9, 3 * len(draws)), squeeze=False)
    for row, (name, sets) in zip(axes, draws.items(), strict=True):
        for ax, (label, points) in zip(row, sets.items(), strict=True):
            ax.scatter(*np.asarray(points).T, s=3, alpha=0.5)
            ax.set(title=f"{name}: {label}", xlim=(-5, 5), ylim=(-4, 8))
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", figure="scatter plots")
    options.add_argument("--num-steps", type=positive, default=2000, help="(default: 2000)")
    arguments = parse(options, argv)
    rows, last = [], {}
    for target in (Banana(), TwoModes()):
        for seed in arguments.seeds:
            row, draws = run(target, seed, arguments.num_steps, arguments.quiet)
            rows.append(row)
            last[row["target"]] = draws
    print(table(rows))
    if arguments.figure is not None:
        draw_figure(arguments.figure, last)
    settings = SETTINGS | {"num_steps": arguments.num_steps}
    write_record("non_gaussian", arguments, settings, rows)
    return rows


if __name__ == "__main__":
    main()
