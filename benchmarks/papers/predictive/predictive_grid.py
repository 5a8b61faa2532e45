"""
The posterior model's shape and the number of draws on x sin x (appendix E of Dabrowski and
Pagendam; their Fig. 8 and 9).

Rows: noises, hidden units and outputs of the posterior model ("N": as many as the primary model has
parameters). Columns: draws in training. The primary model is a perceptron with --hidden units.
Measures as in predictive_curve, at the last step; "sd left" is the spread half a unit
left of the data.

The scale of the likelihood is annealed over 400 steps. From then on a fit is stopped when the mean
loss of a window of 200 steps is not below that of every window before by 0.01 nats a datum, and at
--num-steps at the latest. The rate falls to a tenth over 2000 steps, and on at that pace: a longer
limit changes no fit that has ended before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyro
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, parse, parser, positive, stopwatch
from benchmarks.papers.predictive._predictive import (
    Data,
    Windowed,
    draws_at,
    loss,
    make_guide,
    make_model,
    train,
    x_sin_x,
)
from benchmarks.papers.predictive._tables import over_seeds, paired
from benchmarks.records import write_record
from benchmarks.shared.curves import draw_curves
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.training import Annealed

SETTINGS: dict[str, Any] = {
    "scale": 0.1,
    "lr": 3e-3,
    "num_draws": 100,
    "annealed": 400,
    "tenth after": 2000,
    "window": 200,
    "gain": 0.01,
}
#: noises and hidden units; a linear map without the latter; 0 stands for N
SHAPES: dict[str, tuple[int, int | None]] = {
    "[1, N]": (1, None),
    "[32, N]": (32, None),
    "[5, 16, N]": (5, 16),
    "[N, N]": (0, None),
    "[N, N, N]": (0, 0),
}
_DIFFERENCES = {"rmse": ("rmse", "+.2f"), "sd extra, min": ("sd extra", "+.2f")}


def _generator(noises: int, hidden: int | None, extra: int, outputs: int) -> MLPGenerator:
    """A linear map is a perceptron with a hidden layer of identities as wide as its input."""
    inputs = (noises or outputs) + extra
    if hidden is None:
        return MLPGenerator(inputs, outputs, (inputs,), activation="identity", init_scale=0.1)
    return MLPGenerator(inputs, outputs, (hidden or outputs,), activation="relu", init_scale=0.1)


def fit(
    kind: str, shape: str, num_particles: int, hidden: int, data: Data, steps: Any
) -> tuple[dict[str, float], Tensor]:
    """Its measures and the step at which it was stopped, and 30 draws on the grid."""
    scale = Annealed(1.0, SETTINGS["scale"], min(SETTINGS["annealed"], max(1, len(steps) // 2)))
    local = kind == "conditional"
    model, net = make_model(hidden, scale, len(data.x), local=local)
    noises, width = SHAPES[shape]

    def make(outputs: int) -> MLPGenerator:
        return _generator(noises, width, int(local), outputs)

    options = {"generator": make, "noise_dim": None, "hidden_dims": None}
    guide = make_guide(kind, model, net, **options)
    stopped = Windowed(
        steps, SETTINGS["window"], SETTINGS["gain"] * len(data.x), SETTINGS["annealed"]
    )
    train(
        model,
        guide,
        loss("per_datum", num_particles),
        (data.x, data.y),
        stopped,
        num_steps=SETTINGS["tenth after"],
        lr=SETTINGS["lr"],
        scale=scale,
        on_loss=stopped.add,
    )
    f = draws_at(model, guide, data.x_test, num_samples=SETTINGS["num_draws"])
    extra = draws_at(model, guide, data.extra, num_samples=SETTINGS["num_draws"])
    error = (f.mean(0) - data.y_test)[data.regular]
    left = (data.x_test[:, 0] - (data.x.min() - 0.5)).abs().argmin()
    found = {
        "rmse": error.square().mean().sqrt().item(),
        "sd regular": f.std(0)[data.regular].median().item(),
        "sd extra, min": extra.std(0).min().item(),
        "sd left": f.std(0)[left].item(),
        "step": stopped.num_taken,
    }
    return found, f[:30]


def table(rows: list[dict[str, Any]]) -> str:
    """One line for a cell of the grid: means over seeds with their standard errors."""
    measured = {
        "rmse": ("rmse", ".2f"),
        "sd regular": ("sd regular", ".3f"),
        "sd extra, min": ("sd extra", ".2f"),
        "sd left": ("sd left", ".2f"),
        "step": ("step", ".0f"),
    }
    return over_seeds(rows, ("guide", "shape", "draws"), measured)


def differences(rows: list[dict[str, Any]]) -> str:
    """What other numbers of draws have more than 10, paired by seed."""
    return paired(rows, 10, ("guide", "shape"), _DIFFERENCES, "draws")


def shapes(rows: list[dict[str, Any]]) -> str:
    """What other shapes have more than the small perceptron, paired by seed."""
    return paired(rows, "[5, 16, N]", ("guide", "draws"), _DIFFERENCES, "shape")


def context(rows: list[dict[str, Any]]) -> str:
    """What the conditional guide has more than the unconditioned one, paired by seed."""
    return paired(rows, "unconditioned", ("shape", "draws"), _DIFFERENCES, "guide")


def _jobs(arguments: Any) -> Iterator[tuple[int, str, str, int]]:
    for seed in arguments.seeds:
        for kind in arguments.guides:
            for shape in arguments.shapes:
                for num_particles in arguments.num_particles:
                    yield seed, kind, shape, num_particles


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    data = x_sin_x()
    settings = {**SETTINGS, "hidden": arguments.hidden, "num_steps": arguments.num_steps}
    rows: list[dict[str, Any]] = []
    panels: dict[str, Tensor] = {}
    for seed, kind, shape, num_particles in _jobs(arguments):
        name = f"{kind} {shape}, {num_particles} draws"
        steps = trange(arguments.num_steps, desc=name, disable=arguments.quiet)
        with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
            found, panels[name] = fit(kind, shape, num_particles, arguments.hidden, data, steps)
        row = {"guide": kind, "shape": shape, "draws": num_particles, "seed": seed, **found}
        rows.append(row | {"cpu_seconds": watch.cpu_seconds})
        write_record("predictive_grid", arguments, settings, rows)
    print(table(rows))
    if arguments.figure is not None:
        columns = len(arguments.num_particles)
        draw_curves(arguments.figure, data.x, data.y, data.x_test, panels, columns=columns)
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=range(5), figure="one panel per fit, of the last seed")
    options.add_argument("--num-steps", type=positive, default=6000, help="most (default: 6000)")
    options.add_argument("--hidden", type=positive, default=64, help="units (default: 64)")
    options.add_argument("--num-particles", type=positive, nargs="+", default=[1, 10, 100])
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    kinds = ["unconditioned", "conditional"]
    options.add_argument("--guides", nargs="+", choices=kinds, default=kinds)
    return options


if __name__ == "__main__":
    main()
