"""
Two parallel curves over (0.3, 0.6): can a conditional posterior have two modes there and one
elsewhere? (Section 3.3 of Dabrowski and Pagendam; their Fig. 5.)

128 points of a(x) sin a(x), a(x) = 10 x - 5, on (0, 0.6), and of the same plus 1 on (0.3, 1), half
of them each, with noise of scale 0.01. Primary model: one hidden layer of ReLU units.

per datum   Laplace likelihood whose scale is annealed from 1 to 0.1, no label
expected    minus the mean L1 norm over draws, the loss of the paper's left panel
labels      Gaussian likelihood; the branch within (0.3, 0.6) is an input of the posterior model,
            drawn at random for the test (right panel)

low, up     share of draws within 0.3 of the lower and of the upper curve, for x in (0.3, 0.6)
between     share of draws there that are near neither
outside     share of draws within 0.3 of the one curve, for other x
sd          of the draws in (0.3, 0.6)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
import torch
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.papers.predictive._predictive import (
    draws_at,
    loss,
    make_guide,
    make_model,
    train,
    two_branches,
)
from benchmarks.records import write_record
from benchmarks.shared.curves import draw_curves
from pyro_implicit.training import Annealed

SETTINGS: dict[str, Any] = {"scale": 0.1, "num_particles": 10, "lr": 5e-3, "near": 0.3}
METHODS = ("per datum", "expected", "labels")


def _context(x: Tensor, y: Tensor | None = None, label: Tensor | None = None) -> Tensor:
    columns = [4 * x - 2] if label is None else [4 * x - 2, 2 * label[:, None] - 1]
    return torch.cat(columns, 1)


def fit(method: str, hidden: int, data: Any, grid: Tensor, steps: Any) -> Tensor:
    """Draws of the primary model's output on the grid, shape ``(200, K)``."""
    x, y, upper = data
    scale = Annealed(1.0, SETTINGS["scale"], max(1, len(steps) // 2))
    model, net = make_model(hidden, scale, len(x), local=True, laplace=method != "labels")
    guide = make_guide("conditional", model, net, context=_context)
    inside = (x[:, 0] > 0.3) & (x[:, 0] < 0.6)
    args: tuple[Tensor, ...] = (x, y)
    if method == "labels":
        args = (x, y, (upper & inside).float())
    objective = loss("expected" if method == "expected" else "per_datum", SETTINGS["num_particles"])
    train(
        model,
        guide,
        objective,
        args,
        steps,
        num_steps=len(steps),
        lr=SETTINGS["lr"],
        scale=scale,
    )
    if method != "labels":
        return draws_at(model, guide, grid, num_samples=200)
    middle = (grid[:, 0] > 0.3) & (grid[:, 0] < 0.6)
    draws = []
    for label in (torch.zeros(len(grid)), middle.float()):
        at = {"y": torch.zeros(len(grid)), "label": label}
        draws.append(draws_at(model, guide, grid, at["y"], label, num_samples=100))
    return torch.cat(draws)


def measures(f: Tensor, grid: Tensor) -> dict[str, float]:
    """Shares of draws near each curve."""
    x = grid[:, 0]
    low = (10 * x - 5) * torch.sin(10 * x - 5)
    near_low, near_up = (f - low).abs() < SETTINGS["near"], (f - low - 1).abs() < SETTINGS["near"]
    inside = (x > 0.3) & (x < 0.6)
    right = torch.where(x < 0.45, near_low, near_up)[:, ~inside & (x > 0) & (x < 1)]
    return {
        "low": near_low[:, inside].float().mean().item(),
        "up": near_up[:, inside].float().mean().item(),
        "between": (~near_low & ~near_up)[:, inside].float().mean().item(),
        "outside": right.float().mean().item(),
        "sd": f[:, inside].std(0).mean().item(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    grid = torch.linspace(0.0, 1.0, 201)[:, None]
    rows: list[dict[str, Any]] = []
    panels: dict[str, Tensor] = {}
    data = two_branches()
    for seed in arguments.seeds:
        with fixed_seed(seed):
            data = two_branches()
        for method in arguments.methods:
            steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), pyro.validation_enabled(False):
                f = fit(method, arguments.hidden, data, grid, steps)
            rows.append({"method": method, "seed": seed} | measures(f, grid))
            panels[method] = f[::7]
    print(table(rows))
    settings = {**SETTINGS, "hidden": arguments.hidden, "num_steps": arguments.num_steps}
    write_record("predictive_branches", arguments, settings, rows)
    if arguments.figure is not None:
        draw_curves(arguments.figure, data[0], data[1], grid, panels, columns=3, limits=(-2.0, 6.0))
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS, figure="draws of the last seed")
    options.add_argument("--num-steps", type=positive, default=3000, help="(default: 3000)")
    options.add_argument("--hidden", type=positive, default=64, help="units (default: 64)")
    return options


if __name__ == "__main__":
    main()
