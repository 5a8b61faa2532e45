"""
Two parallel curves over (0.3, 0.6): can a conditional posterior have two modes there and one
elsewhere, and is it worth more than maximum likelihood? (Section 3.3 of Dabrowski and Pagendam;
their Fig. 5.)

128 points of a(x) sin a(x), a(x) = 10 x - 5, on (0, 0.6), and of the same plus 1 on (0.3, 1), half
of them each, with noise of scale 0.01. Primary model: one hidden layer of ReLU units.

per datum        Laplace likelihood whose scale is annealed from 1 to 0.1, no label
mixture density  the same loss; for each x a mixture of two Gaussians over the weights
expected         minus the mean L1 norm over draws, the loss of the paper's left panel
labels           Gaussian likelihood; the branch within (0.3, 0.6) is an input of the posterior
                 model, drawn at random for the test (right panel)
Gaussian network, mixture network (2), (5)
                 maximum likelihood: from x to a Gaussian, or a mixture of 2 or 5, of y itself;
                 the scales' floor is annealed from 1 to 0.02; the best of 3 starts

A method's states: "best", by the predictive density of 64 further points, and "last".

low, up      share of draws within 0.3 of the lower and of the upper curve, for x in (0.3, 0.6)
between      share of draws there that are near neither
outside      share of draws within 0.3 of the one curve, for other x
sd           of the draws in (0.3, 0.6)
log density  of 1000 test points, nats each; to the draws of a primary model is added Gaussian
             noise, whose scale is the best on the 64 points
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, parse, parser, positive, stopwatch
from benchmarks.papers.predictive._networks import Recipe, by_maximum_likelihood
from benchmarks.papers.predictive._predictive import (
    best_scale,
    draws_at,
    loss,
    make_guide,
    make_model,
    negative_log_predictive,
    train,
    two_branches,
)
from benchmarks.papers.predictive._tables import over_seeds, paired
from benchmarks.records import write_record
from benchmarks.shared.curves import draw_curves
from pyro_implicit.training import Annealed

SETTINGS: dict[str, Any] = {
    "scale": 0.1,
    "num_particles": 10,
    "lr": 5e-3,
    "near": 0.3,
    "num_checks": 25,
    "num_validation": 64,
    "num_test": 1000,
    "num_draws": 200,
    "networks": {"num_starts": 3, "floor": 0.02},
    "scales": [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8],
}
#: of networks by maximum likelihood, the components
NETWORKS = {"Gaussian network": 1, "mixture network (2)": 2, "mixture network (5)": 5}
METHODS = ("per datum", "mixture density", "expected", "labels", *NETWORKS)


@dataclass(frozen=True)
class Branches:
    """
    :param train: inputs ``(N, 1)``, targets, and whether these are on the upper curve.
    :param validation: the same of the points that choose state and scale.
    :param test: the same of the points that are scored.
    """

    train: tuple[Tensor, Tensor, Tensor]
    validation: tuple[Tensor, Tensor, Tensor]
    test: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def drawn(cls) -> Branches:
        """By the random state of torch."""
        others = (SETTINGS["num_validation"], SETTINGS["num_test"])
        return cls(two_branches(), *(two_branches(n, regular=False) for n in others))


@dataclass(frozen=True)
class Fitted:
    """
    :param str state: its name.
    :param int step: that it is from.
    :param Tensor f: draws on the grid, ``(S, K)``.
    :param float log_density: of a test point, mean.
    :param scale: of the noise in that density, None where the network gives it.
    """

    state: str
    step: int
    f: Tensor
    log_density: float
    scale: float | None


def _scaled(x: Tensor) -> Tensor:
    return 4 * x - 2


def _context(x: Tensor, y: Tensor | None = None, label: Tensor | None = None) -> Tensor:
    return _scaled(x) if label is None else torch.cat([_scaled(x), 2 * label[:, None] - 1], 1)


def _inside(x: Tensor) -> Tensor:
    return (x[:, 0] > 0.3) & (x[:, 0] < 0.6)


def fit(method: str, hidden: int, data: Branches, grid: Tensor, steps: Any) -> Iterator[Fitted]:
    """The states of a method."""
    if method in NETWORKS:
        yield from _by_maximum_likelihood(NETWORKS[method], data, grid, steps)
        return
    x, y, upper = data.train
    scale = Annealed(1.0, SETTINGS["scale"], max(1, len(steps) // 2))
    labelled = method == "labels"
    model, net = make_model(hidden, scale, len(x), local=True, laplace=not labelled)
    options = {"num_components": 2} if method == "mixture density" else {}
    kind = "mdn" if method == "mixture density" else "conditional"
    guide = make_guide(kind, model, net, context=_context, **options)
    at = _draws(model, guide, labelled)

    def score() -> float:
        return best_scale(at(data.validation[0]), data.validation[1], SETTINGS["scales"])[0]

    states = train(
        model,
        guide,
        loss("expected" if method == "expected" else "per_datum", SETTINGS["num_particles"]),
        (x, y, (upper & _inside(x)).float()) if labelled else (x, y),
        steps,
        num_steps=len(steps),
        lr=SETTINGS["lr"],
        scale=scale,
        score=score,
        check_every=max(1, len(steps) // SETTINGS["num_checks"]),
    )
    for state in states:
        state.put(guide)
        _, noise = best_scale(at(data.validation[0]), data.validation[1], SETTINGS["scales"])
        log_density = -negative_log_predictive(at(data.test[0]), data.test[1], noise)
        yield Fitted(state.name, state.step, at(grid), log_density, noise)


def _draws(model: Any, guide: Any, labelled: bool) -> Callable[[Tensor], Tensor]:
    """Draws ``(S, K)`` at some inputs; half of them on each label, if there are labels."""
    count = SETTINGS["num_draws"]

    def at(x: Tensor) -> Tensor:
        if not labelled:
            return draws_at(model, guide, x, num_samples=count)
        half, zeros = max(1, count // 2), torch.zeros(len(x))
        labels = (zeros, _inside(x).float())
        return torch.cat([draws_at(model, guide, x, zeros, k, num_samples=half) for k in labels])

    return at


def _by_maximum_likelihood(
    num_components: int, data: Branches, grid: Tensor, steps: Any
) -> Iterator[Fitted]:
    own, count = SETTINGS["networks"], len(steps)
    parts = [(_scaled(x), y) for x, y, _ in (data.train, data.validation)]
    every = max(1, count // SETTINGS["num_checks"])
    recipe = Recipe(num_components, own["num_starts"], count, SETTINGS["lr"], own["floor"], every)
    steps.reset(own["num_starts"] * count)
    for state in by_maximum_likelihood(recipe, *parts, steps.update):
        with torch.no_grad():
            drawn = state.net(_scaled(grid), own["floor"]).sample((SETTINGS["num_draws"],))
            found = state.net(_scaled(data.test[0]), own["floor"]).log_prob(data.test[1])
        yield Fitted(state.name, state.step, drawn, found.mean().item(), None)


def measures(f: Tensor, grid: Tensor) -> dict[str, float]:
    """Shares of draws near each curve."""
    x = grid[:, 0]
    low = (10 * x - 5) * torch.sin(10 * x - 5)
    near_low, near_up = (f - low).abs() < SETTINGS["near"], (f - low - 1).abs() < SETTINGS["near"]
    inside = _inside(grid)
    right = torch.where(x < 0.45, near_low, near_up)[:, ~inside & (x > 0) & (x < 1)]
    return {
        "low": near_low[:, inside].float().mean().item(),
        "up": near_up[:, inside].float().mean().item(),
        "between": (~near_low & ~near_up)[:, inside].float().mean().item(),
        "outside": right.float().mean().item(),
        "sd": f[:, inside].std(0).mean().item(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line for a method and a state: means over seeds with their standard errors."""
    columns = {key: (key, ".2f") for key in ("low", "up", "between", "outside", "sd")}
    columns |= {"log_density": ("log density", ".2f"), "step": ("step", ".0f")}
    return over_seeds(rows, ("method", "state"), columns | {"cpu_seconds": ("CPU s", ".0f")})


def margins(rows: list[dict[str, Any]]) -> str:
    """How far each method is ahead of the posterior per datum, paired by seed."""
    return paired(rows, METHODS[0], ("state",), {"log_density": ("log density", "+.2f")})


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    grid = torch.linspace(0.0, 1.0, 201)[:, None]
    settings = {**SETTINGS, "hidden": arguments.hidden, "num_steps": arguments.num_steps}
    rows: list[dict[str, Any]] = []
    panels: dict[str, Tensor] = {}
    for seed in arguments.seeds:
        with fixed_seed(seed):
            data = Branches.drawn()
        for method in arguments.methods:
            steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                found = list(fit(method, arguments.hidden, data, grid, steps))
            for one in found:
                row = {"method": method, "seed": seed, "state": one.state, "step": one.step}
                row |= {"log_density": one.log_density, "scale": one.scale}
                rows.append(row | measures(one.f, grid) | {"cpu_seconds": watch.cpu_seconds})
                panels[f"{method} ({one.state})"] = one.f[::7]
            write_record("predictive_branches", arguments, settings, rows)
    print(table(rows))
    if arguments.figure is not None:
        draw_curves(arguments.figure, *data.train[:2], grid, panels, limits=(-2.0, 6.0))
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", range(5), methods=METHODS, figure="draws of the last seed")
    options.add_argument("--num-steps", type=positive, default=3000, help="(default: 3000)")
    options.add_argument("--hidden", type=positive, default=64, help="units (default: 64)")
    return options


if __name__ == "__main__":
    main()
