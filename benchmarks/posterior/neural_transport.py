"""Is Hamiltonian Monte Carlo better off in the noise's space of a fitted guide?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.mcmc import MCMC, NUTS
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser
from benchmarks.posterior._generators_methods import SETTINGS as FITTING
from benchmarks.posterior._generators_methods import fit
from benchmarks.posterior._generators_targets import Target, load
from benchmarks.posterior._posteriordb_reference import compare
from benchmarks.records import write_record
from pyro_implicit.inference import NeuTraReparam

DESCRIPTION = """\
Effective samples (ArviZ, bulk, of the worst parameter) per gradient of Pyro's NUTS after warm-up,
in the model's own coordinates and through the default HyperNetworkGuide, fitted for some CPU time.
A run of the model is a gradient. One chain for each seed, in float64."""

SETTINGS: dict[str, Any] = {"cpu_seconds": 15.0, "num_warmup": 200, "num_samples": 500}
TARGETS = ("funnel", "eight schools, centred")
METHODS = ("NUTS", "NUTS through the guide")
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION)
    options.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    arguments = parse(options, argv)
    rows: list[Row] = []
    todo = [(t, s) for s in arguments.seeds for t in arguments.targets]
    with pyro.validation_enabled(False):
        for name, seed in tqdm(todo, disable=arguments.quiet):
            for method in METHODS:
                with fixed_seed(seed, torch.float64):
                    target = funnel() if name == "funnel" else load(name, arguments.data_root, {})
                    row = {"target": name, "method": method, "seed": seed}
                    rows.append(row | chain(target, method, seed))
                write_record("neural_transport", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def funnel() -> Target:
    """As a user writes it: nine scales that depend on the tenth latent."""

    def model() -> None:
        v = pyro.sample("v", dist.Normal(0.0, 1.5))
        pyro.sample("x", dist.Normal(0.0, (v / 2).exp()[..., None].expand(*v.shape, 9)).to_event(1))

    exact = load("funnel", None, {}).moments  # type: ignore[arg-type]

    def parameters(draws: dict[str, Tensor]) -> Any:
        both = torch.cat([draws["v"].reshape(-1, 1), draws["x"].reshape(-1, 9)], -1)
        pairs = zip(both.mean(0).tolist(), both.std(0).tolist(), strict=True)
        return dict(zip(exact, pairs, strict=True))

    return Target(model, moments=exact, parameters=parameters)


class Counted:
    """A model that counts its runs."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model, self.count = model, 0

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        return self.model(*args)


def chain(target: Target, method: str, seed: int) -> Row:
    """Effective samples, gradients after and in the warm-up, and errors of moments."""
    model, transport, effort = target.model, None, {"steps": 0, "cpu_seconds": 0.0}
    if method != "NUTS":
        guide, effort = fit(target, "autoregressive", SETTINGS["cpu_seconds"])
        transport = NeuTraReparam(guide)
        model = transport.reparam(model)
    counted, counts = Counted(model), {"warm-up": 0}

    def count(kernel: Any, samples: Any, stage: str, i: int) -> None:
        if stage.lower().startswith("warm"):
            counts["warm-up"] = counted.count

    mcmc = MCMC(
        NUTS(counted, jit_compile=False),
        SETTINGS["num_samples"],
        warmup_steps=SETTINGS["num_warmup"],
        disable_progbar=True,
        hook_fn=count,
    )
    pyro.set_rng_seed(seed)
    mcmc.run(*target.arguments)
    draws = mcmc.get_samples()
    if transport is not None:
        with torch.no_grad():
            draws = transport.transform_sample(next(iter(draws.values())))
    gradients = counted.count - counts["warm-up"]
    effective = min(_effective(values) for values in draws.values())
    errors = compare(target.parameters(draws), target.moments)  # type: ignore[misc]
    return {
        "effective": effective,
        "gradients": gradients,
        "per_1000": 1000 * effective / gradients,
        "warm_up_gradients": counts["warm-up"],
        "fit_gradients": effort["steps"] * FITTING["num_particles"],
        "mean_error": errors["mean_error"],
        "sd_error": errors["sd_error"],
    }


def _effective(values: Tensor) -> float:
    """Of the worst entry, shape ``(n, *shape)``, in one chain."""
    columns = values.reshape(len(values), -1).numpy()
    return min(float(az.ess(np.asarray(column)[None], method="bulk")) for column in columns.T)


def table(rows: list[Row]) -> str:
    """Means over seeds, the worst errors, and the ratio to plain NUTS."""
    header = ["target", "method", "effective", "gradients", "per 1000", "ratio", "ratios by seed"]
    header += ["mean: worst error", "sd: worst error"]
    lines = []
    for name, method in dict.fromkeys((r["target"], r["method"]) for r in rows):
        group = [r for r in rows if (r["target"], r["method"]) == (name, method)]
        plain = [r for r in rows if (r["target"], r["method"]) == (name, METHODS[0])]
        rates = [statistics.fmean(r["per_1000"] for r in one) for one in (group, plain)]
        by_seed = [a["per_1000"] / b["per_1000"] for a, b in zip(group, plain, strict=False)]
        lines.append(
            [
                name,
                method,
                f"{statistics.fmean(r['effective'] for r in group):.0f}",
                f"{statistics.fmean(r['gradients'] for r in group):.0f}",
                f"{rates[0]:.2f}",
                f"{rates[0] / rates[1]:.1f}",
                ", ".join(f"{ratio:.1f}" for ratio in by_seed),
                f"{max(r['mean_error'] for r in group):.2f}",
                f"{max(r['sd_error'] for r in group):.0%}",
            ]
        )
    return format_table(header, lines)
