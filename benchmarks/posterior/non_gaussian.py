"""
Two densities in the plane that no Gaussian fits: a banana and a mixture of two modes.

The default HyperNetworkGuide beside AutoMultivariateNormal: Wasserstein-1 distance of 1000 draws
to 1000 exact draws, and how far apart two sets of exact draws are (the floor). `--figure` shows the
draws of the last seed over the density.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def log_density(self, points: Tensor) -> Tensor:
        """Of points ``(..., 2)``, where ``(...)`` is returned."""
        x, y = points.unbind(-1)
        return dist.Normal(0.0, 1.0).log_prob(x) + dist.Normal(x**2 - 1, 0.5).log_prob(y)

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
        pyro.factor("mixture", self.log_density(x))

    def log_density(self, points: Tensor) -> Tensor:
        """Of points ``(..., 2)``, where ``(...)`` is returned."""
        weights = dist.Categorical(torch.tensor(WEIGHTS))
        return dist.MixtureSameFamily(weights, self.components()).log_prob(points)

    def exact(self, n: int) -> Tensor:
        chosen = torch.multinomial(torch.tensor(WEIGHTS), n, replacement=True)
        return self.components().sample((n,))[torch.arange(n), chosen]


#: the target, its title, and what the figure shows of either axis
TARGETS: dict[str, tuple[Any, str, tuple[tuple[float, float], tuple[float, float]]]] = {
    "Banana": (Banana(), "a banana", ((-3.6, 3.6), (-3.2, 10.0))),
    "TwoModes": (TwoModes(), "two modes", ((-4.8, 4.8), (-2.8, 4.4))),
}
#: of the figure: the source of the draws, its title and its colour
COLUMNS = {
    "exact": ("exact draws", "#707070"),
    "implicit": ("implicit guide", "#0072B2"),
    "AutoMultivariateNormal": ("Gaussian guide", "#B34700"),
}


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


def outlines(target: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """The density on a grid ``(len(y), len(x))``, and its levels around 95% and 50% of the mass."""
    grid = torch.tensor(np.stack(np.meshgrid(x, y), -1), dtype=torch.float32)
    density = target.log_density(grid).exp().numpy()
    falling = np.sort(density, axis=None)[::-1]
    share = falling.cumsum() / falling.sum()
    return density, [float(falling[np.searchsorted(share, mass)]) for mass in (0.95, 0.5)]


def make_figure(draws: dict[str, dict[str, Tensor]], distances: dict[str, dict[str, float]]) -> Any:
    """
    One row of scatter plots per target, each over the outlines of its density.

    :param draws: points ``(num_draws, 2)`` of each target, by their source.
    :param distances: to the exact draws, of each target, by their source.
    """
    from matplotlib.figure import Figure

    size = (9.0, 0.4 + 2.7 * len(draws))
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(len(draws), len(COLUMNS), squeeze=False, sharex="row", sharey="row")
    for row, (name, sets) in zip(axes, draws.items(), strict=True):
        target, title, (x_span, y_span) = TARGETS[name]
        x, y = np.linspace(*x_span, 201), np.linspace(*y_span, 201)
        density, levels = outlines(target, x, y)
        for ax, (label, (heading, colour)) in zip(row, COLUMNS.items(), strict=True):
            points = np.asarray(sets[label])
            ax.contour(x, y, density, levels, colors="0.1", linewidths=(0.8, 1.4))
            ax.scatter(*points.T, s=4, color=colour, alpha=0.45, linewidths=0)
            least = " (the floor)" if label == "exact" else ""
            note = f"distance {distances[name][label]:.2f}{least}"
            ax.text(0.5, 0.94, note, transform=ax.transAxes, ha="center", va="top", fontsize=11)
            ax.set(xlim=x_span, ylim=y_span)
            if ax in axes[0]:
                ax.set_title(heading, fontsize=13)
        row[0].set_ylabel(title, fontsize=13)
    return figure


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", figure="scatter plots")
    options.add_argument("--num-steps", type=positive, default=2000, help="(default: 2000)")
    arguments = parse(options, argv)
    rows, last, distances = [], {}, {}
    for target, _, _ in TARGETS.values():
        for seed in arguments.seeds:
            row, draws = run(target, seed, arguments.num_steps, arguments.quiet)
            rows.append(row)
            last[row["target"]] = draws
            distances[row["target"]] = row | {"exact": row["floor"]}
    print(table(rows))
    if arguments.figure is not None:
        make_figure(last, distances).savefig(arguments.figure, dpi=120)
    settings = SETTINGS | {"num_steps": arguments.num_steps}
    write_record("non_gaussian", arguments, settings, rows)
    return rows


if __name__ == "__main__":
    main()
