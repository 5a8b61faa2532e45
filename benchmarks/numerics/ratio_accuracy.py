"""
KL divergences between known Gaussians, N(m, s^2) and N(0, 1) in d dimensions, as the objectives
that learn a ratio of densities estimate them, and the gradients with respect to m and s.

published           KernelDensityRatioELBO(published=True): p/q, bases from p, contrast with
                    draws of the prior
q/p, median         contrast="prior", bandwidth=1: q/p, bases from q, one median distance wide
q/p                 contrast="prior" and all other defaults
adaptive diagonal   the default contrast, with that covariance
adaptive full       the same with a full covariance, up to 50 dimensions
critic prior 5, 50  AdversarialELBO(contrast="prior") with so many critic steps per evaluation
critic adaptive 5   AdversarialELBO, all defaults

Each is evaluated as users do, by objective.terms(model, guide), with 200 draws. A critic is trained
on, from one evaluation to the next, with the guide at rest; the first 60 are not counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_value
from torch import Tensor, nn
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive, stopwatch
from benchmarks.records import write_record
from pyro_implicit import AdversarialELBO, HyperNetworkGuide, KernelDensityRatioELBO
from pyro_implicit.generators import Generator

#: d -> m, s
TARGETS = {1: (1.0, 0.5), 2: (0.5, 0.5), 10: (0.3, 0.7), 50: (0.3, 0.7), 500: (0.3, 0.5)}
NUM_DRAWS = 200
WARM_UP = 60
MOST_FULL = 50
ESTIMATORS: dict[str, Callable[..., Any]] = {
    "published": partial(KernelDensityRatioELBO, published=True),
    "q/p, median": partial(KernelDensityRatioELBO, contrast="prior", bandwidth=1.0),
    "q/p": partial(KernelDensityRatioELBO, contrast="prior"),
    "adaptive diagonal": partial(KernelDensityRatioELBO, covariance="diagonal"),
    "adaptive full": partial(KernelDensityRatioELBO, covariance="full"),
    "critic prior 5": partial(AdversarialELBO, contrast="prior"),
    "critic prior 50": partial(AdversarialELBO, contrast="prior", num_critic_steps=50),
    "critic adaptive 5": AdversarialELBO,
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
QUANTITIES = ("kl", "by_mean", "by_scale")


class Affine(Generator):
    """``m + s z`` with the same ``m`` and ``s`` in every dimension."""

    full_rank = True

    def __init__(self, dim: int, mean: float, scale: float) -> None:
        super().__init__((dim,), dim)
        self.mean = nn.Parameter(torch.tensor(mean))
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`pyro_implicit.generators.Generator.forward`."""
        return self.mean + self.scale * z


def truth(dim: int, mean: float, scale: float) -> dict[str, float]:
    """The divergence and its derivatives."""
    return {
        "kl": dim * (-math.log(scale) + (scale**2 + mean**2 - 1) / 2),
        "by_mean": dim * mean,
        "by_scale": dim * (scale - 1 / scale),
    }


def evaluate(dim: int, name: str, dtype: str, repeats: int, warm_up: int) -> dict[str, Any]:
    """
    One estimator at one target.

    :returns: mean and standard deviation over repeats of each quantity, the share of clipped draws
        or the critic's accuracy in the last repeat, and the CPU time of an evaluation.
    """

    def model() -> None:
        pyro.sample("x", dist.Normal(torch.zeros(dim), 1.0).to_event(1))

    affine = Affine(dim, *TARGETS[dim])
    start = init_to_value(values={"x": torch.zeros(dim)})
    guide = HyperNetworkGuide(model, generator=affine, init_loc_fn=start).setup()
    objective = ESTIMATORS[name](
        NUM_DRAWS, vectorize_particles=True, max_plate_nesting=0, num_samples=NUM_DRAWS
    )
    found: dict[str, list[float]] = {key: [] for key in QUANTITIES}
    before = warm_up if isinstance(objective, AdversarialELBO) else 0
    with stopwatch() as watch:
        for _ in range(before + repeats):
            loss = objective.differentiable_loss(model, guide)  # there is no likelihood: the KL
            by_mean, by_scale = torch.autograd.grad(loss, [affine.mean, affine.scale])
            for key, value in zip(QUANTITIES, (loss, by_mean, by_scale), strict=True):
                found[key].append(float(value.detach()))
    row: dict[str, Any] = {}
    for key, values in found.items():
        counted = values[before:]
        row[key] = statistics.fmean(counted)
        row[key + "_sd"] = statistics.stdev(counted) if repeats > 1 else 0.0
    shares = (
        {"critic_accuracy": objective.critic_accuracy}
        if isinstance(objective, AdversarialELBO)
        else {"clipped": objective.clipped}
    )
    row |= {key: next(iter(value.values())) for key, value in shares.items()}
    return row | {"cpu_ms": 1e3 * watch.cpu_seconds / (before + repeats), "dtype": dtype}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--repeats", type=positive, default=30, help="(default: 30)")
    options.add_argument(
        "--dims", type=int, nargs="+", choices=TARGETS, default=list(TARGETS), metavar="D"
    )
    options.add_argument(
        "--estimators", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS), metavar="NAME"
    )
    options.add_argument(
        "--warm-up", type=int, default=WARM_UP, metavar="N", help=f"(default: {WARM_UP})"
    )
    arguments = parse(options, argv)
    jobs = [
        (seed, dtype, dim, name)
        for seed in arguments.seeds
        for dtype in DTYPES
        for dim in arguments.dims
        for name in arguments.estimators
        if name != "adaptive full" or dim <= MOST_FULL
    ]
    rows = []
    for seed, dtype, dim, name in tqdm(jobs, disable=arguments.quiet):
        with fixed_seed(seed, DTYPES[dtype]), pyro.validation_enabled(False):
            row = evaluate(dim, name, dtype, arguments.repeats, arguments.warm_up)
        rows.append({"d": dim, "estimator": name, "seed": seed} | row)
        write_record("ratio_accuracy", arguments, {"num_draws": NUM_DRAWS}, rows)
    for title, show in (("KL", table), ("dKL / dm", by_mean), ("dKL / ds", by_scale)):
        print(f"\n{title}, mean ± standard deviation over repeats\n\n{show(rows)}")
    return rows


def table(rows: list[dict[str, Any]], key: str = "kl") -> str:
    """A line for each estimator and dtype, a column for each number of dimensions."""
    dims = list(dict.fromkeys(row["d"] for row in rows))
    lines = [["truth", "", *(f"{truth(d, *TARGETS[d])[key]:.4g}" for d in dims)]]
    for name in dict.fromkeys(row["estimator"] for row in rows):
        for dtype in DTYPES:
            cells = []
            for d in dims:
                same = (r for r in rows if (r["d"], r["estimator"], r["dtype"]) == (d, name, dtype))
                row = next(same, None)
                cells.append(_cell(row[key], row[key + "_sd"]) if row else "")
            lines.append([name, dtype, *cells])
    return format_table(["estimator", "dtype", *(f"d = {d}" for d in dims)], lines)


by_mean = partial(table, key="by_mean")
by_scale = partial(table, key="by_scale")


def shares(rows: list[dict[str, Any]]) -> str:
    """Draws whose ratio is clipped, or the critic's accuracy, in the last repeat."""
    dims = list(dict.fromkeys(row["d"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["estimator"] for row in rows):
        own = [r for r in rows if (r["estimator"], r["dtype"]) == (name, "float32")]
        for key, what in (("clipped", "draws clipped"), ("critic_accuracy", "critic right")):
            found = {row["d"]: f"{row[key]:.0%}" for row in own if key in row}
            if found:
                lines.append([name, what, *(found.get(d, "") for d in dims)])
    return format_table(["estimator", "share", *(f"d = {d}" for d in dims)], lines)


def _cell(mean: float, sd: float) -> str:
    digits = 2 if abs(mean) < 100 else 1
    return f"{mean:.{digits}f} ± {sd:.{digits}f}"


if __name__ == "__main__":
    main()
