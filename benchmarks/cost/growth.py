"""
What a training step costs against each size, and what a user is told.

latents   a standard normal of so many numbers with one datum: the default guide under the objective
          that fit chooses, MMNNGuide likewise, and Pyro's AutoNormal
rows      a logistic regression of ten coefficients: the default guide as fit trains it, AutoNormal
draws     eight schools, draws of a step: the default guide under LinearisedELBO, AutoNormal
noise     1000 latents from a perceptron of so many noises: LinearisedELBO and LanczosELBO

CPU time of this process, medians; the slope is that of the logarithms over the last sizes, at least
three, from where a size is ten times the smallest.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.cost._speed_growth import many
from benchmarks.cost._speed_models import TARGETS, linear
from benchmarks.cost._speed_timing import Job, medians
from benchmarks.records import write_record
from pyro_implicit import HyperNetworkGuide, LanczosELBO, LinearisedELBO, MMNNGuide
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.training.fitting.default_objective import default_objective

SETTINGS: dict[str, Any] = {
    "latents": (10, 100, 256, 300, 1000, 3000, 10_000, 30_000, 100_000),
    "rows": (100, 1000, 10_000, 100_000),
    "draws": (1, 2, 4, 8, 16, 32, 64),
    "noise": (10, 30, 100, 300, 1000),
    "noise_latents": 1000,
    "coefficients": 10,
}
Row = dict[str, Any]
Jobs = dict[str, tuple[Job, str]]  # by method: a step, and what was told


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    options.add_argument("--rounds", type=positive, default=7, help="(default: 7)")
    options.add_argument("--figure", type=Path, metavar="FILE")
    arguments = parse(options, argv)
    rows: list[Row] = []
    todo = [(axis, size) for axis in arguments.axes for size in SETTINGS[axis]]
    for axis, size in tqdm(todo, disable=arguments.quiet):
        with fixed_seed(arguments.seeds[0]), pyro.validation_enabled(False):
            jobs = AXES[axis](size)
            ms = medians({name: job for name, (job, _) in jobs.items()}, arguments.rounds, 2)
        for name, (_, told) in jobs.items():
            rows.append({"axis": axis, "size": size, "method": name, "ms": ms[name], "told": told})
        write_record("growth", arguments, SETTINGS, rows)
    print(table(rows))
    if arguments.figure is not None:
        draw_figure(arguments.figure, rows)
    return rows


def _latents(size: int) -> Jobs:
    guides: dict[str, Any] = {"default guide": partial(HyperNetworkGuide, init_from=None)}
    if size >= 100:
        guides["MMNNGuide"] = partial(MMNNGuide, init_from=None)
    found = {name: _chosen(many, make, (size,)) for name, make in guides.items()}
    return found | {"AutoNormal": _pyro(many, (size,), 2)}


def _rows(size: int) -> Jobs:
    count = SETTINGS["coefficients"]
    x = torch.randn(size, count)
    y = (torch.rand(size) < torch.sigmoid(x @ torch.randn(count))).float()

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(count), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=linear(x, w)), obs=y)

    guide = partial(HyperNetworkGuide, init_from=None)
    return {"default guide": _chosen(model, guide, (x, y)), "AutoNormal": _pyro(model, (x, y), 8)}


def _draws(size: int) -> Jobs:
    target = TARGETS["eight schools"]()
    guide = HyperNetworkGuide(target.model, init_from=None)
    objective = LinearisedELBO(size, vectorize_particles=True, max_plate_nesting=1)
    step = _step(target.model, guide, objective, target.args)
    return {"default guide": (step, ""), "AutoNormal": _pyro(target.model, target.args, size)}


def _noise(size: int) -> Jobs:
    latents = SETTINGS["noise_latents"]
    found: Jobs = {}
    for kind in (LinearisedELBO, LanczosELBO):
        make = partial(MLPGenerator, size)
        guide = HyperNetworkGuide(many, generator=lambda m, make=make: make(m), init_from=None)
        guide._pyro_name = kind.__name__  # their parameters are side by side in Pyro's store
        found[kind.__name__] = _step(many, guide, kind(4), (latents,)), ""
    return found


AXES: dict[str, Callable[[int], Jobs]] = {
    "latents": _latents,
    "rows": _rows,
    "draws": _draws,
    "noise": _noise,
}


def _chosen(model: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Job, str]:
    """A step under the objective that ``fit`` chooses, and the hints on the way."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PerformanceHint)
        guide = make(model)
        guide._pyro_name = type(guide).__name__
        guide.setup(*args)
        objective, hints = default_objective(model, guide, args, {})
    said = [str(one.message) for one in told if issubclass(one.category, PerformanceHint)]
    return _step(model, guide, objective, args), " ".join([*hints, *said])[:200]


def _pyro(model: Any, args: tuple[Any, ...], num_draws: int) -> tuple[Job, str]:
    objective = Trace_ELBO(num_draws, vectorize_particles=True, max_plate_nesting=1)
    return _step(model, AutoNormal(model), objective, args), ""


def _step(model: Any, guide: Any, objective: Any, args: tuple[Any, ...]) -> Job:
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), objective)
    return lambda: svi.step(*args)


# ---- what is told of them


def slope(rows: Sequence[Row]) -> float:
    """Of the logarithms of time over those of the size, where that is ten times the smallest."""
    least = 10 * min(row["size"] for row in rows)
    large = [row for row in rows if row["size"] >= least]
    large = large if len(large) >= 3 else sorted(rows, key=lambda row: row["size"])[-3:]
    if len(large) < 2:
        return math.nan
    x, y = ([math.log(row[key]) for row in large] for key in ("size", "ms"))
    return statistics.linear_regression(x, y).slope


def _groups(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    names = dict.fromkeys((row["axis"], row["method"]) for row in rows)
    return {name: [row for row in rows if (row["axis"], row["method"]) == name] for name in names}


def table(rows: list[Row]) -> str:
    """One line for each axis and method."""
    lines = []
    for (axis, method), own in _groups(rows).items():
        first, last = own[0], own[-1]
        told = next((row for row in own if row["told"]), None)
        hint = "" if told is None else f"from {told['size']} on: {told['told'].split('.')[0]}"
        ends = [f"{row['ms']:.3g} ({row['size']})" for row in (first, last)]
        lines.append([axis, method, *ends, f"{slope(own):.2f}", hint])
    header = ["against", "method", "ms at the smallest", "ms at the largest", "slope", "told"]
    return format_table(header, lines)


def draw_figure(path: Path, rows: list[Row]) -> None:
    """Time against each size, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    axes = list(dict.fromkeys(row["axis"] for row in rows))
    figure, panels = plt.subplots(1, len(axes), figsize=(4 * len(axes), 3.4), squeeze=False)
    styles = ("o-", "s--", "^:")
    for panel, axis in zip(panels[0], axes, strict=True):
        own = [(name, part) for (one, name), part in _groups(rows).items() if one == axis]
        for style, (name, part) in zip(styles, own, strict=False):
            x, y = ([row[key] for row in part] for key in ("size", "ms"))
            panel.loglog(x, y, style, label=f"{name}: {slope(part):.2f}")
        panel.set(xlabel=axis, ylabel="CPU ms of a step")
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
