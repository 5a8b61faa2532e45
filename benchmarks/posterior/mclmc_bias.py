"""The bias of microcanonical Langevin dynamics, which has no accept step, by its energy error."""

from __future__ import annotations

import math
import statistics
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, stopwatch
from benchmarks.records import write_record
from pyro_implicit import refine
from pyro_implicit.chains import HMC, MCLMC

DESCRIPTION = """\
Densities whose moments are known, sampled from exact draws by 16 chains without preconditioning:
the relative error of the variance of the worse site, beside the standard error that the effective
sample size leaves to chance, for several energy errors that step sizes are tuned to; and by HMC."""

ERRORS = (0.5, 0.1, 0.02, 0.005, 0.001, 0.0001)
SETTINGS: dict[str, Any] = {"num_chains": 16, "num_steps": 4000, "num_warmup": 1000}


def normal(size: int) -> Callable[[], None]:
    def model() -> None:
        pyro.sample("x", dist.Normal(torch.zeros(size), 1.0).to_event(1))

    return model


def bananas() -> None:
    """Five pairs: ``a`` is standard normal, ``b`` given ``a`` about ``a ** 2``."""
    with pyro.plate("pairs", 5):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(a**2, 0.5))


#: the model, exact draws, and the true variance of each site
TARGETS: dict[str, tuple[Callable[[], None], Callable[[int], dict[str, Tensor]], dict[str, float]]]
TARGETS = {
    "normal, 10": (normal(10), lambda n: {"x": torch.randn(n, 10)}, {"x": 1.0}),
    "normal, 100": (normal(100), lambda n: {"x": torch.randn(n, 100)}, {"x": 1.0}),
    "bananas, 10": (bananas, lambda n: _bananas(torch.randn(n, 5)), {"a": 1.0, "b": 2.25}),
}


def _bananas(a: Tensor) -> dict[str, Tensor]:
    return {"a": a, "b": a**2 + 0.5 * torch.randn_like(a)}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0])
    options.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    arguments = parse(options, argv)
    rows: list[dict[str, Any]] = []
    for row in tqdm(_runs(arguments), disable=arguments.quiet):
        rows.append(row)
        write_record("mclmc_bias", arguments, dict(SETTINGS), rows)
    print(table(rows))
    return rows


def _runs(arguments: Namespace) -> Iterator[dict[str, Any]]:
    kernels: list[Any] = [MCLMC(energy_error=error, precondition=None) for error in ERRORS]
    for target in arguments.targets:
        for kernel in [*kernels, HMC(precondition=None)]:
            for seed in arguments.seeds:
                with fixed_seed(seed), stopwatch() as watch:
                    found = _run(target, kernel)
                yield {"target": target, "seed": seed, **found, "cpu_seconds": watch.cpu_seconds}


def _run(target: str, kernel: Any) -> dict[str, Any]:
    model, exact, variances = TARGETS[target]
    chains = refine(model, exact(SETTINGS["num_chains"]), kernel=kernel, progress=False, **SETTINGS)
    draws = {name: value.double() for name, value in chains.draws.items()}
    squares = {name: value**2 for name, value in draws.items()}
    errors, chance = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = chains.effective_size()
    for name, variance in variances.items():
        value = draws[name].flatten(0, 1)
        mean = 0.0 if name != "b" else 1.0
        errors.append(float(((value - mean) ** 2).mean()) / variance - 1)
        spread = float(squares[name].std() / variance)
        chance.append(spread / math.sqrt(float(sizes[name].sum())))
    worst = max(range(len(errors)), key=lambda k: abs(errors[k]))
    per_1000 = min(float(size.min()) for size in sizes.values())
    per_1000 /= (chains.num_steps - SETTINGS["num_warmup"]) * chains.num_chains / 1000
    return {
        "kernel": chains.settings["kernel"],
        "energy_error": getattr(kernel, "energy_error", None),
        "step_size": float(chains.sample_stats["step_size"].mean()),
        "variance_error": errors[worst],
        "chance": chance[worst],
        "per_1000": per_1000,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each target and setting; seeds are averaged."""
    lines = []
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["target"], row["energy_error"]), []).append(row)
    for (target, error), group in groups.items():
        bias = statistics.fmean(row["variance_error"] for row in group)
        chance = statistics.fmean(row["chance"] for row in group) / math.sqrt(len(group))
        lines.append(
            [
                target,
                "HMC" if error is None else f"{error:g}",
                f"{statistics.fmean(row['step_size'] for row in group):.2f}",
                f"{bias:+.1%}",
                f"{chance:.1%}",
                f"{statistics.fmean(row['per_1000'] for row in group):.0f}",
            ]
        )
    header = ["target", "energy error", "step size", "variance", "chance"]
    return format_table([*header, "effective per 1000 gradients"], lines)


if __name__ == "__main__":
    main()
