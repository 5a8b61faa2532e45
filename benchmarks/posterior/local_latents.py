"""How near does a guide come to the posterior of each row's own latents?"""

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
from pyro_implicit import ConditionalHyperNetworkGuide, LinearisedELBO, fit, posterior_draws
from pyro_implicit.exceptions import NonFiniteError

DESCRIPTION = """\
Fits guides to models in which each of 150 rows has latents of its own, by fit(model, guide, y) with
no other argument but the limit of steps.

increasing  ConditionalHyperNetworkGuide(model): a map of each row that cannot fold
perceptron  the same with hidden_dims=(40, 40), which may
AutoNormal  Pyro's: a mean and a deviation for each row, no network

The gap is the log evidence, by 400 000 draws of the prior, less the evidence bound that the guide
claims, in nats a row: below 0 the claim is false. The error is the root mean square, over rows, of
the errors of means, in deviations, and of log-deviations."""

SETTINGS: dict[str, Any] = {"num_steps": 2000, "num_prior": 400_000, "num_draws": 2000}
ROWS = 150
Row = dict[str, Any]
Mean = Callable[[Tensor], Any]


def curve(z: Tensor) -> Any:
    """One latent, two numbers: two latents lead nearly to one datum."""
    return dist.Normal(torch.cat([torch.sin(2 * z), z.square() - 1], -1), 0.3)


def saturated(z: Tensor) -> Any:
    """Three latents, five numbers that saturate."""
    weights = torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
    return dist.Normal(torch.tanh(z @ weights), 0.4)


def counts(z: Tensor) -> Any:
    """Two latents, four counts, most of which are small."""
    weights = torch.randn(2, 4, generator=torch.Generator().manual_seed(4))
    return dist.Poisson(torch.exp(z @ weights))


MODELS: dict[str, tuple[int, Mean]] = {"curve": (1, curve), "saturated": (3, saturated)}
MODELS["counts"] = (2, counts)
METHODS: dict[str, Callable[[Any], Any]] = {
    "increasing": ConditionalHyperNetworkGuide,
    "perceptron": partial(ConditionalHyperNetworkGuide, hidden_dims=(40, 40)),
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
        write_record("local_latents", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each model, seed (of data and guide) and method."""
    todo = [(m, s, k) for m in arguments.models for s in arguments.seeds for k in arguments.methods]
    for name, seed, method in tqdm(todo, disable=arguments.quiet):
        with fixed_seed(seed):
            model, y = _made(*MODELS[name])
            exact = _exact(*MODELS[name], y)
        with fixed_seed(seed):
            row = {"model": name, "method": method, "seed": seed, "note": None}
            yield row | _one(model, y, method, exact)


def _made(size: int, likelihood: Mean) -> tuple[Callable[[Tensor], None], Tensor]:
    y = likelihood(torch.randn(ROWS, size)).sample()

    def model(y: Tensor) -> None:
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
            pyro.sample("y", likelihood(z).to_event(1), obs=y)

    return model, y


@torch.no_grad()
def _exact(size: int, likelihood: Mean, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log evidence, means and deviations of each row by draws of the prior."""
    z = torch.randn(SETTINGS["num_prior"], size)
    found = likelihood(z)
    log_density = torch.stack([found.log_prob(row).sum(-1) for row in y])
    weights = log_density.softmax(-1)
    mean = weights @ z
    deviation = (weights @ z.square() - mean.square()).clamp(min=1e-12).sqrt()
    return log_density.logsumexp(-1) - math.log(len(z)), mean, deviation


def _one(model: Any, y: Tensor, method: str, exact: tuple[Tensor, Tensor, Tensor]) -> Row:
    guide, begin = METHODS[method](model), time.process_time()
    objective: Any = None
    if method == "AutoNormal":
        objective = Trace_ELBO(8, vectorize_particles=True, max_plate_nesting=1)
    steps = SETTINGS["num_steps"]
    try:
        result = fit(model, guide, y, objective=objective, num_steps=steps, progress=False)
    except NonFiniteError as error:
        return {"note": f"no fit: {str(error)[:120]}"}
    seconds = time.process_time() - begin
    judge: Any = Trace_ELBO if method == "AutoNormal" else LinearisedELBO
    evidence, mean, deviation = exact
    with torch.no_grad():
        draws = SETTINGS["num_draws"]
        loss = judge(draws, vectorize_particles=True, max_plate_nesting=1).loss(model, guide, y)
        z = posterior_draws(guide, draws, y)["z"].reshape(draws, ROWS, -1)
    shift = (z.mean(0) - mean) / deviation
    ratio = (z.std(0) / deviation).log()
    return {
        "gap": float(loss + evidence.sum()) / ROWS,
        "error": float(torch.cat([shift, ratio]).square().mean().sqrt()),
        "steps": result.num_steps,
        "cpu_seconds": seconds,
        "warnings": [str(text)[:200] for text in result.warnings],
    }


def table(rows: list[Row]) -> str:
    """Means and standard deviations over seeds."""
    header = ["model", "method", "fits", "gap", "error", "steps", "CPU s", "told"]
    lines = []
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        group = [r for r in rows if (r["model"], r["method"]) == (model, method)]
        tried, group = len(group), [r for r in group if "gap" in r]
        fits = f"{len(group)} of {tried}"
        if not group:
            lines.append([model, method, fits, *[None] * 5])
            continue
        cells = [mean_and_spread([r[key] for r in group], ".3f") for key in ("gap", "error")]
        steps, seconds = (statistics.fmean(r[k] for r in group) for k in ("steps", "cpu_seconds"))
        told = f"{sum(bool(r['warnings']) for r in group)} of {len(group)}"
        lines.append([model, method, fits, *cells, f"{steps:.0f}", f"{seconds:.0f}", told])
    return format_table(header, lines)
