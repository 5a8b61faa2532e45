"""Five reference posteriors: moments of fitted guides against long Hamiltonian Monte Carlo runs."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import ELBO, Trace_ELBO
from pyro.infer.autoguide import (
    AutoGuide,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
    init_to_median,
)
from torch import Tensor
from torch.distributions import transform_to
from tqdm.auto import trange

from benchmarks._common import (
    fixed_seed,
    format_table,
    load_npz,
    parse,
    parser,
    positive,
    stopwatch,
    write_record,
)
from benchmarks._posteriordb_models import MODELS, Posterior
from pyro_implicit import HyperNetworkGuide, LinearisedELBO

DESCRIPTION = """\
Fits the five posteriors of the data folder's posteriordb in float64 and compares the mean and the
standard deviation of every parameter with those of the reference draws. The worst parameter counts:
the error of the mean in reference standard deviations, that of the standard deviation in percent.
All settings are the same for all models; nothing is chosen by the reference.

Methods: laplace (AutoLaplaceApproximation), mvn (AutoMultivariateNormal), start (the Gaussian that
init_from="laplace" begins with, untrained), implicit (HyperNetworkGuide and LinearisedELBO)."""

METHODS = ("laplace", "mvn", "start", "implicit")
NUM_DRAWS = 100_000
NUM_PARTICLES = 8
LEARNING_RATES = {"laplace": 1e-2, "mvn": 1e-2, "implicit": 3e-3}

Draws = dict[str, Tensor]
Moments = dict[str, tuple[float, float]]


def main(argv: Sequence[str] | None = None) -> int:
    options = parser(DESCRIPTION)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options.add_argument(
        "--num-steps", type=positive, default=2000, metavar="N", help="(default: 2000)"
    )
    arguments = parse(options, argv)
    rows = list(run(arguments))
    write_record("benchmarks.posteriordb", arguments, _settings(arguments), rows)
    print(_table(rows))
    print("Error of the reference itself (10 chains, one standard error, worst parameter):")
    for name in arguments.models:
        mean, sd = reference_error(load_npz(arguments.data_root, _path(MODELS[name])))
        print(f"  {name}: mean {mean:.3f} standard deviations, standard deviation {sd:.1%}")
    return 0


def _path(posterior: Posterior) -> str:
    return f"posteriordb/{posterior.file}.npz"


def _settings(arguments: Namespace) -> dict[str, Any]:
    return {
        "num_steps": arguments.num_steps,
        "num_particles": NUM_PARTICLES,
        "learning_rates": LEARNING_RATES,
        "schedule": "cosine to 0",
        "num_draws": NUM_DRAWS,
        "dtype": "float64",
    }


def run(arguments: Namespace) -> Iterator[dict[str, Any]]:
    """One result per model, method and seed."""
    for name in arguments.models:
        posterior = MODELS[name]
        arrays = load_npz(arguments.data_root, _path(posterior))
        reference = reference_moments(arrays)
        for method in arguments.methods:
            for seed in arguments.seeds:
                with fixed_seed(seed, torch.float64):
                    moments, seconds = fit(
                        posterior,
                        posterior.tensors(arrays),
                        method,
                        num_steps=arguments.num_steps,
                        bar=None if arguments.quiet else f"{name} {method} {seed}",
                    )
                yield {
                    "model": name,
                    "method": method,
                    "seed": seed,
                    **seconds,
                    **compare(moments, reference),
                    "targets": posterior.targets,
                }


# ---- the fits


def fit(
    posterior: Posterior, data: tuple[Tensor, ...], method: str, *, num_steps: int, bar: str | None
) -> tuple[Moments, dict[str, float]]:
    """
    :param data: the model's arguments.
    :param str method: one of :data:`METHODS`.
    :returns: moments of the fitted guide's draws, and the seconds of the fit.
    """
    with stopwatch() as watch:
        if method in ("start", "implicit"):
            guide = HyperNetworkGuide(posterior.model, init_from="laplace").setup(*data)
            objective = LinearisedELBO(num_particles=NUM_PARTICLES, vectorize_particles=True)
        elif method == "mvn":
            guide = AutoMultivariateNormal(posterior.model, init_loc_fn=_start)
            objective = Trace_ELBO(num_particles=NUM_PARTICLES, vectorize_particles=True)
        else:
            guide = AutoLaplaceApproximation(posterior.model, init_loc_fn=_start)
            objective = Trace_ELBO()
        if method == "start":
            _make_gaussian(guide)
        else:
            _train(posterior.model, guide, objective, data, num_steps, LEARNING_RATES[method], bar)
        if method == "laplace":
            guide = guide.laplace_approximation(*data)
    seconds = {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds}
    return posterior.moments(_draw(guide, data)), seconds


def _start(site: dict[str, Any]) -> Tensor:
    """Pyro's own start, and the constraint's image of zero for priors that cannot be drawn from."""
    try:
        return init_to_median(site)
    except NotImplementedError:
        shape = site["fn"].batch_shape + site["fn"].event_shape
        return transform_to(site["fn"].support)(torch.zeros(shape))


def _train(
    model: Callable[..., None],
    guide: AutoGuide,
    objective: ELBO,
    data: tuple[Tensor, ...],
    num_steps: int,
    learning_rate: float,
    bar: str | None,
) -> None:
    """Adam with a cosine learning rate."""
    loss_module = objective(model, guide)
    loss_module(*data)  # makes the parameters
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    with trange(num_steps, desc=bar, disable=bar is None, leave=False) as steps:
        for step in steps:
            optimizer.zero_grad()
            loss = loss_module(*data)
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                steps.set_postfix(loss=f"{loss.item():.2f}", refresh=False)


@torch.no_grad()
def _make_gaussian(guide: HyperNetworkGuide) -> None:
    """Takes the network out of an untrained guide: the Laplace approximation is left."""
    generator = guide.samplers[0].generator
    generator.weight_out.zero_()
    generator.bias_out.zero_()


@torch.no_grad()
def _draw(guide: AutoGuide, data: tuple[Tensor, ...]) -> Draws:
    if isinstance(guide, HyperNetworkGuide):
        return guide.sample(NUM_DRAWS)
    with pyro.plate("draws", NUM_DRAWS, dim=-2):
        return guide(*data)


# ---- the comparison


def reference_moments(arrays: dict[str, np.ndarray]) -> Moments:
    """Mean and standard deviation of the reference draws of each parameter."""
    draws = {
        k.removeprefix("draws."): v.astype(float)
        for k, v in arrays.items()
        if k.startswith("draws.")
    }
    return {name: (values.mean(), values.std(ddof=1)) for name, values in draws.items()}


def reference_error(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
    """
    Standard errors of the reference's means (in standard deviations) and standard deviations
    (relative), from the spread between its chains, for the worst parameter.
    """
    worst_mean = worst_sd = 0.0
    for name, values in arrays.items():
        if name.startswith("draws."):
            chains, sd = values.astype(float), values.astype(float).std(ddof=1)
            root = math.sqrt(len(chains))
            worst_mean = max(worst_mean, chains.mean(1).std(ddof=1) / root / sd)
            worst_sd = max(worst_sd, chains.std(1, ddof=1).std(ddof=1) / root / sd)
    return worst_mean, worst_sd


def compare(moments: Moments, reference: Moments) -> dict[str, Any]:
    """
    :returns: the worst errors, the parameters they belong to, and those of every parameter.
    """
    if moments.keys() != reference.keys():
        raise ValueError(f"parameters {sorted(moments)}; the reference has {sorted(reference)}")
    mean = {k: abs(moments[k][0] - m) / s for k, (m, s) in reference.items()}
    sd = {k: abs(moments[k][1] / s - 1) for k, (_, s) in reference.items()}
    worst = {"mean": max(mean, key=mean.__getitem__), "sd": max(sd, key=sd.__getitem__)}
    return {
        "mean_error": mean[worst["mean"]],
        "sd_error": sd[worst["sd"]],
        "worst": worst,
        "errors": {
            k: {"mean": mean[k], "sd": moments[k][1] / s - 1} for k, (_, s) in reference.items()
        },
    }


def _table(rows: list[dict[str, Any]]) -> str:
    """The worst seed counts; seconds are the mean over seeds."""
    lines = []
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        group = [r for r in rows if (r["model"], r["method"]) == (model, method)]
        mean, sd = (max(group, key=lambda r: r[k]) for k in ("mean_error", "sd_error"))
        limits = group[0]["targets"]
        lines.append(
            [
                model,
                method,
                f"{mean['mean_error']:.3f} ({mean['worst']['mean']})",
                f"{sd['sd_error']:.1%} ({sd['worst']['sd']})",
                "yes" if mean["mean_error"] <= limits[0] and sd["sd_error"] <= limits[1] else "no",
                sum(r["seconds"] for r in group) / len(group),
            ]
        )
    return format_table(
        ["model", "method", "mean: worst error", "sd: worst error", "in target", "seconds"], lines
    )


if __name__ == "__main__":
    raise SystemExit(main())
