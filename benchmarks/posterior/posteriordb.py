"""Five reference posteriors: moments of fitted guides against long Hamiltonian Monte Carlo runs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

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

from benchmarks.common import fixed_seed, format_table, load_npz, parse, parser, positive, stopwatch
from benchmarks.posterior._posteriordb_models import MODELS, Posterior
from benchmarks.posterior._posteriordb_reference import (
    Moments,
    compare,
    reference_error,
    reference_moments,
)
from benchmarks.records import write_record
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, refine

DESCRIPTION = """\
Fits the five posteriors of the data folder's posteriordb in float64 and compares the mean and the
standard deviation of every parameter with those of the reference draws. The worst parameter counts:
the error of the mean in reference standard deviations, that of the standard deviation in percent.
All settings are the same for all models; nothing is chosen by the reference.

Methods: laplace (AutoLaplaceApproximation), mvn (AutoMultivariateNormal), start (the Gaussian that
init_from="laplace" begins with, untrained), implicit (HyperNetworkGuide and LinearisedELBO), mclmc
and hmc (refine from 16 modes, the kernel's own settings, --chain-steps gradients per chain)."""

METHODS = ("laplace", "mvn", "start", "implicit", "mclmc", "hmc")
CHAINS = ("mclmc", "hmc")
NUM_DRAWS = 100_000
NUM_PARTICLES = 16
LEARNING_RATE = 5e-3

Draws = dict[str, Tensor]

#: Pyro's Laplace guide raises where its Hessian is indefinite
_NO_FIT = dict.fromkeys(["mean_error", "sd_error", "worst", "errors"])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, methods=METHODS)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument(
        "--num-steps", type=positive, default=4000, metavar="N", help="(default: 4000)"
    )
    options.add_argument(
        "--baseline-rate",
        type=float,
        default=0.3,
        metavar="RATE",
        help="learning rate of Pyro's guides (default: 0.3)",
    )
    options.add_argument(
        "--chain-steps", type=positive, default=10_000, metavar="N", help="(default: 10000)"
    )
    options.add_argument(
        "--reference", action="store_true", help="the error of the reference itself, no fits"
    )
    arguments = parse(options, argv)
    rows = list(_reference(arguments)) if arguments.reference else list(run(arguments))
    write_record("posteriordb", arguments, _settings(arguments), rows)
    print((reference if arguments.reference else table)(rows))
    return rows


def _path(posterior: Posterior) -> str:
    return f"posteriordb/{posterior.file}.npz"


def _settings(arguments: Namespace) -> dict[str, Any]:
    return {
        "num_steps": arguments.num_steps,
        "num_particles": NUM_PARTICLES,
        "learning_rate": LEARNING_RATE,
        "baseline_rate": arguments.baseline_rate,
        "schedule": "cosine to 0",
        "num_draws": NUM_DRAWS,
        "chain_steps": arguments.chain_steps,
        "dtype": "float64",
    }


def run(arguments: Namespace) -> Iterator[dict[str, Any]]:
    """One result per model, method and seed."""
    for name in arguments.models:
        posterior = MODELS[name]
        arrays = load_npz(arguments.data_root, _path(posterior))
        exact = reference_moments(arrays)
        for method in arguments.methods:
            for seed in arguments.seeds:
                with fixed_seed(seed, torch.float64):
                    data = posterior.tensors(arrays)
                    if method in CHAINS:
                        moments, seconds = sample(posterior, data, method, arguments.chain_steps)
                    else:
                        moments, seconds = fit(
                            posterior,
                            data,
                            method,
                            num_steps=arguments.num_steps,
                            rate=LEARNING_RATE if method == "implicit" else arguments.baseline_rate,
                            bar=None if arguments.quiet else f"{name} {method} {seed}",
                        )
                yield {
                    "model": name,
                    "method": method,
                    "seed": seed,
                    **seconds,
                    **(_NO_FIT if moments is None else compare(moments, exact)),
                    "targets": posterior.targets,
                }


def _reference(arguments: Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.models:
        mean, sd = reference_error(load_npz(arguments.data_root, _path(MODELS[name])))
        yield {"model": name, "mean_error": mean, "sd_error": sd}


# ---- the fits


def fit(
    posterior: Posterior,
    data: tuple[Tensor, ...],
    method: str,
    *,
    num_steps: int,
    rate: float,
    bar: str | None,
) -> tuple[Moments | None, dict[str, float]]:
    """
    :param data: the model's arguments.
    :param str method: one of :data:`METHODS`.
    :returns: moments of the fitted guide's draws (None where the Laplace approximation does not
        exist), and the seconds of the fit.
    """
    with stopwatch() as watch:
        if method in ("start", "implicit"):
            perceptron = {"hidden_dims": (40, 40)} if method == "start" else {}
            guide = HyperNetworkGuide(posterior.model, init_from="laplace", **perceptron)
            guide.setup(*data)
            objective = LinearisedELBO(NUM_PARTICLES, vectorize_particles=True, max_plate_nesting=1)
        elif method == "mvn":
            guide = AutoMultivariateNormal(posterior.model, init_loc_fn=_start)
            objective = Trace_ELBO(NUM_PARTICLES, vectorize_particles=True, max_plate_nesting=1)
        else:
            guide = AutoLaplaceApproximation(posterior.model, init_loc_fn=_start)
            objective = Trace_ELBO()
        if method == "start":
            _make_gaussian(guide)
        else:
            _train(posterior.model, guide, objective, data, num_steps, rate, bar)
        if method == "laplace":
            guide = _laplace(guide, data)
    seconds = {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds}
    return None if guide is None else posterior.moments(_draw(guide, data)), seconds


def sample(
    posterior: Posterior, data: tuple[Tensor, ...], kernel: str, num_steps: int
) -> tuple[Moments, dict[str, float]]:
    """
    :param data: the model's arguments.
    :param str kernel: one of :data:`CHAINS`.
    :param int num_steps: gradients of each chain, half for the warm-up.
    :returns: moments of the draws, and the seconds of the run.
    """
    with stopwatch() as watch:
        chains = refine(
            posterior.model, 16, *data, kernel=kernel, num_steps=num_steps, progress=False
        )
    draws = {name: value.flatten(0, 1) for name, value in chains.draws.items()}
    return posterior.moments(draws), {"seconds": watch.seconds, "cpu_seconds": watch.cpu_seconds}


def _laplace(guide: AutoLaplaceApproximation, data: tuple[Tensor, ...]) -> AutoGuide | None:
    try:
        return guide.laplace_approximation(*data)
    except torch.linalg.LinAlgError:  # Adam has not come to a maximum: the Hessian is indefinite
        return None


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
    rate: float,
    bar: str | None,
) -> None:
    """Adam with a cosine learning rate."""
    loss_module = objective(model, guide)
    loss_module(*data)  # makes the parameters
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=rate)
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
    generator.stored_weight_out.zero_()
    generator.bias_out.zero_()


@torch.no_grad()
def _draw(guide: AutoGuide, data: tuple[Tensor, ...]) -> Draws:
    if isinstance(guide, HyperNetworkGuide):
        return guide.sample(NUM_DRAWS)
    with pyro.plate("draws", NUM_DRAWS, dim=-2):
        return {name: value.squeeze(1) for name, value in guide(*data).items()}


# ---- the table


def reference(rows: list[dict[str, Any]]) -> str:
    """Standard errors of the reference itself, of its worst parameter."""
    lines = [[r["model"], f"{r['mean_error']:.3f}", f"{r['sd_error']:.1%}"] for r in rows]
    return format_table(["model", "mean", "standard deviation"], lines)


def table(rows: list[dict[str, Any]]) -> str:
    """The worst seed counts; seconds are the mean over seeds."""
    header = ["model", "method", "mean: worst error", "sd: worst error", "in target", "s", "CPU s"]
    lines = []
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        group = [r for r in rows if (r["model"], r["method"]) == (model, method)]
        fits = [r for r in group if r["errors"] is not None]
        cells, inside = ["no fit", "no fit"], False
        if len(fits) == len(group):
            mean, sd = (max(fits, key=itemgetter(k)) for k in ("mean_error", "sd_error"))
            limits = group[0]["targets"]
            inside = mean["mean_error"] <= limits[0] and sd["sd_error"] <= limits[1]
            cells = [
                f"{mean['mean_error']:.3f} ({mean['worst']['mean']})",
                f"{sd['sd_error']:.1%} ({sd['worst']['sd']})",
            ]
        seconds = [sum(r[k] for r in group) / len(group) for k in ("seconds", "cpu_seconds")]
        lines.append([model, method, *cells, "yes" if inside else "no", *seconds])
    return format_table(header, lines)


if __name__ == "__main__":
    main()
