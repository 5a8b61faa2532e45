"""How near does a guide come to the posterior of a scale that many latents share?"""

from __future__ import annotations

import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, mean_and_spread, parse, parser
from benchmarks.records import write_record
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit, posterior_draws

DESCRIPTION = """\
Fits guides to models of hundreds of latents that share a scale, by fit(model, guide, y) with no
other argument. Noise is normal, so that the latents can be integrated out: the posterior of the
scale is exact, by quadrature, and so is the evidence.

groups   effects of groups, three data each: a_g ~ N(m, s)
walk     a random walk, a datum each step, whose steps have deviation s

implicit    HyperNetworkGuide(model)
perceptron  the same with a perceptron of 100 noises and learned output noise, the default before
AutoNormal  Pyro's, a vectorised Trace_ELBO of 4 draws

The shift is that of the mean of s, in its exact deviations; the ratio that of its deviation to the
exact one. The gap is the log evidence less the bound that the guide claims: below 0 the claim is
false."""

SETTINGS: dict[str, Any] = {"num_draws": 4000, "judge_draws": 500, "grid": 400, "max_steps": None}
EACH = 3  # data of a group
Row = dict[str, Any]
Model = Callable[[Tensor], None]


def groups(y: Tensor) -> None:
    """``y``: shape ``(EACH, G)``, of noise 1."""
    mean = pyro.sample("m", dist.Normal(0.0, 2.0))
    scale = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("groups", y.shape[-1], dim=-1):
        effect = pyro.sample("a", dist.Normal(mean, scale))
        with pyro.plate("data", EACH, dim=-2):
            pyro.sample("y", dist.Normal(effect, 1.0), obs=y)


def walk(y: Tensor) -> None:
    """``y``: shape ``(T,)``, of noise 1."""
    begin = pyro.sample("m", dist.Normal(0.0, 2.0))
    scale = pyro.sample("s", dist.HalfNormal(0.5))
    with pyro.plate("times", len(y), dim=-1):
        step = pyro.sample("a", dist.Normal(0.0, 1.0))
        level = begin + scale * step.cumsum(-1)
        pyro.sample("y", dist.Normal(level, 1.0), obs=y)


def _of_groups(y: Tensor, s: float) -> Tensor:
    """Log density of the data at a scale, without the latents."""
    size = y.shape[-1]
    mean = dist.MultivariateNormal(
        torch.zeros(size, dtype=y.dtype),
        4 * torch.ones(size, size, dtype=y.dtype)
        + (s**2 + 1 / EACH) * torch.eye(size, dtype=y.dtype),
    ).log_prob(y.mean(0))
    within = -0.5 * (y - y.mean(0)).square().sum() - 0.5 * size * math.log(EACH)
    return mean + within - 0.5 * size * (EACH - 1) * math.log(2 * math.pi)


def _of_walk(y: Tensor, s: float) -> Tensor:
    count = torch.arange(1, len(y) + 1, dtype=y.dtype)
    covariance = 4 + s**2 * torch.minimum(count[:, None], count) + torch.eye(len(y), dtype=y.dtype)
    return dist.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


#: a model, its latents but the two that they share, the true scale, the prior's deviation, the
#: density of the data at a scale
MODELS: dict[str, tuple[Model, int, float, float, Callable[[Tensor, float], Tensor]]] = {
    "groups, 300": (groups, 300, 0.5, 1.0, _of_groups),
    "groups, 800": (groups, 800, 0.5, 1.0, _of_groups),
    "walk, 300": (walk, 300, 0.15, 0.5, _of_walk),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "implicit": HyperNetworkGuide,
    "perceptron": partial(HyperNetworkGuide, noise_dim=100, hidden_dims=(100,)),
    "AutoNormal": AutoNormal,
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0, 1, 2])
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parse(options, argv)
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("shared_scales", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each model, seed (of data and guide) and method."""
    todo = [(m, s, k) for m in arguments.models for s in arguments.seeds for k in arguments.methods]
    for name, seed, method in tqdm(todo, disable=arguments.quiet):
        with fixed_seed(seed):
            model, size, true, prior, density = MODELS[name]
            y = made(model, size, true)
            exact = exactly(y, prior, density)
        with fixed_seed(seed):
            yield {"model": name, "method": method, "seed": seed} | _one(model, y, method, exact)


def made(model: Model, size: int, true: float) -> Tensor:
    """
    :param model: one of the two.
    :param int size: its groups or steps.
    :param float true: the scale.
    :returns: data of it.
    """
    steps = true * torch.randn(size)
    if model is walk:
        return steps.cumsum(-1) + torch.randn(size)
    return steps + torch.randn(EACH, size)


def exactly(
    y: Tensor, prior: float, density: Callable[[Tensor, float], Tensor]
) -> tuple[float, float, float]:
    """
    :param torch.Tensor y: the data.
    :param float prior: deviation of the half-normal prior of the scale.
    :param density: log density of the data at a scale.
    :returns: log evidence, and mean and deviation of the scale, by the trapezoidal rule.
    """
    scales = torch.linspace(1e-3, 3 * prior, SETTINGS["grid"], dtype=torch.float64)
    for _ in range(2):  # where the posterior is, and there again
        data = torch.stack([density(y.double(), float(s)) for s in scales])
        joint = data + dist.HalfNormal(torch.tensor(prior).double()).log_prob(scales)
        weights = (joint - joint.max()).exp()
        total = torch.trapezoid(weights, scales)
        mean = torch.trapezoid(weights * scales, scales) / total
        spread = (torch.trapezoid(weights * (scales - mean) ** 2, scales) / total).sqrt()
        evidence = float(joint.max() + total.log())
        low, high = max(1e-3, float(mean - 8 * spread)), float(mean + 8 * spread)
        scales = torch.linspace(low, high, SETTINGS["grid"], dtype=torch.float64)
    return evidence, float(mean), float(spread)


def _one(model: Model, y: Tensor, method: str, exact: tuple[float, float, float]) -> Row:
    guide, begin = METHODS[method](model), time.process_time()
    objective: Any = None
    if method == "AutoNormal":
        objective = Trace_ELBO(4, vectorize_particles=True, max_plate_nesting=2)
    steps = SETTINGS["max_steps"]
    result = fit(model, guide, y, objective=objective, num_steps=steps, progress=False)
    seconds = time.process_time() - begin
    evidence, mean, deviation = exact
    judge: Any = Trace_ELBO if method == "AutoNormal" else LinearisedELBO
    with torch.no_grad():
        count = SETTINGS["judge_draws"]
        loss = judge(count, vectorize_particles=True, max_plate_nesting=2).loss(model, guide, y)
        s = posterior_draws(guide, SETTINGS["num_draws"], y)["s"].flatten().double()
    return {
        "gap": float(loss) + evidence,
        "shift": float(s.mean() - mean) / deviation,
        "ratio": float(s.std()) / deviation,
        "exact_mean": mean,
        "exact_deviation": deviation,
        "steps": result.num_steps,
        "cpu_seconds": seconds,
        "warnings": [str(text)[:200] for text in result.warnings],
    }


def table(rows: list[Row]) -> str:
    """Means and standard deviations over seeds; of shifts the root mean square."""
    header = ["model", "method", "fits", "gap", "shift, rms", "ratio", "steps", "CPU s", "told"]
    lines = []
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        group = [r for r in rows if (r["model"], r["method"]) == (model, method)]
        gap, ratio = (mean_and_spread([r[key] for r in group], ".2f") for key in ("gap", "ratio"))
        shift = math.sqrt(statistics.fmean(r["shift"] ** 2 for r in group))
        steps, seconds = (statistics.fmean(r[k] for r in group) for k in ("steps", "cpu_seconds"))
        told = f"{sum(bool(r['warnings']) for r in group)} of {len(group)}"
        cells = [gap, f"{shift:.2f}", ratio, f"{steps:.0f}", f"{seconds:.0f}", told]
        lines.append([model, method, len(group), *cells])
    return format_table(header, lines)
