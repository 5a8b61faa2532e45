"""
The posterior model's shape and the number of draws on x sin x (appendix E of Dabrowski and
Pagendam; their Fig. 8 and 9).

Rows: noises, hidden units and outputs of the posterior model ("N": as many as the primary model has
parameters). Columns: draws in training. The primary model is a perceptron with --hidden units.
Measures as in predictive_curve, at the last step; "sd left" is the spread half a unit
left of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.papers.predictive._predictive import (
    draws_at,
    loss,
    make_guide,
    make_model,
    train,
    x_sin_x,
)
from benchmarks.records import write_record
from benchmarks.shared.curves import draw_curves
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.training import Annealed

SETTINGS: dict[str, Any] = {"scale": 0.1, "lr": 3e-3}
#: noises and hidden units; a linear map without the latter; 0 stands for N
SHAPES: dict[str, tuple[int, int | None]] = {
    "[1, N]": (1, None),
    "[32, N]": (32, None),
    "[5, 16, N]": (5, 16),
    "[N, N]": (0, None),
    "[N, N, N]": (0, 0),
}


def _generator(noises: int, hidden: int | None, extra: int, outputs: int) -> MLPGenerator:
    """A linear map is a perceptron with a hidden layer of identities as wide as its input."""
    inputs = (noises or outputs) + extra
    if hidden is None:
        return MLPGenerator(inputs, outputs, (inputs,), activation="identity", init_scale=0.1)
    return MLPGenerator(inputs, outputs, (hidden or outputs,), activation="relu", init_scale=0.1)


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    data = x_sin_x()
    rows: list[dict[str, Any]] = []
    panels: dict[str, Tensor] = {}
    jobs = [(k, s, n) for k in arguments.guides for s in SHAPES for n in arguments.num_particles]
    for kind, shape, num_particles in jobs:
        name = f"{kind} {shape}, {num_particles} draws"
        steps = trange(arguments.num_steps, desc=name, disable=arguments.quiet)
        with fixed_seed(arguments.seeds[0]), pyro.validation_enabled(False):
            scale = Annealed(1.0, SETTINGS["scale"], max(1, arguments.num_steps // 2))
            local = kind == "conditional"
            model, net = make_model(arguments.hidden, scale, len(data.x), local=local)
            noises, width = SHAPES[shape]

            def make(m: int, n: int = noises, h: int | None = width, k: int = local) -> Any:
                return _generator(n, h, k, m)

            options = {"generator": make, "noise_dim": None, "hidden_dims": None}
            guide = make_guide(kind, model, net, **options)
            train(
                model,
                guide,
                loss("per_datum", num_particles),
                (data.x, data.y),
                steps,
                num_steps=arguments.num_steps,
                lr=SETTINGS["lr"],
                scale=scale,
            )
            f = draws_at(model, guide, data.x_test, num_samples=100)
            extra = draws_at(model, guide, data.extra, num_samples=100)
        error = (f.mean(0) - data.y_test)[data.regular]
        left = (data.x_test[:, 0] - (data.x.min() - 0.5)).abs().argmin()
        rows.append(
            {
                "guide": kind,
                "shape": shape,
                "draws": num_particles,
                "rmse": error.square().mean().sqrt().item(),
                "sd regular": f.std(0)[data.regular].median().item(),
                "sd extra, min": extra.std(0).min().item(),
                "sd left": f.std(0)[left].item(),
            }
        )
        panels[name] = f[:30]
    print(table(rows))
    settings = {**SETTINGS, "hidden": arguments.hidden, "num_steps": arguments.num_steps}
    write_record("predictive_grid", arguments, settings, rows)
    if arguments.figure is not None:
        columns = len(arguments.num_particles)
        draw_curves(arguments.figure, data.x, data.y, data.x_test, panels, columns=columns)
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], figure="one panel per fit")
    options.add_argument("--num-steps", type=positive, default=1500, help="(default: 1500)")
    options.add_argument("--hidden", type=positive, default=64, help="units (default: 64)")
    options.add_argument("--num-particles", type=positive, nargs="+", default=[1, 10, 100])
    kinds = ["unconditioned", "conditional"]
    options.add_argument("--guides", nargs="+", choices=kinds, default=kinds)
    return options


if __name__ == "__main__":
    main()
