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
from pyro_implicit.chains.convergence import effective_sizes

DESCRIPTION = """\
Densities whose moments are known, sampled from exact draws by 16 chains with the kernels' own
settings: the relative error of the variance of the worst site, beside the standard error that the
effective sample size leaves to chance, for several energy errors that step sizes are tuned to; and
by HMC."""

ERRORS = (0.1, 0.02, 0.005, 0.00125, 0.0003)
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


def scales() -> None:
    pyro.sample("x", dist.Normal(torch.zeros(4), SCALES).to_event(1))


def gammas() -> None:
    with pyro.plate("five", 5):
        pyro.sample("g", dist.Gamma(2.0, 1.0))


def mixed() -> None:
    """Twelve unconstrained latents: five normal, three of a Gamma, four of a Dirichlet."""
    pyro.sample("x", dist.Normal(torch.zeros(5), 10.0).to_event(1))
    pyro.sample("g", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
    pyro.sample("p", dist.Dirichlet(torch.full((5,), 2.0)))


def _bananas(n: int) -> dict[str, Tensor]:
    a = torch.randn(n, 5)
    return {"a": a, "b": a**2 + 0.5 * torch.randn(n, 5)}


def _mixed(n: int) -> dict[str, Tensor]:
    return {
        "x": 10 * torch.randn(n, 5),
        "g": dist.Gamma(2.0, 1.0).sample((n, 3)),
        "p": dist.Dirichlet(torch.full((5,), 2.0)).sample((n,)),
    }


SCALES = torch.tensor([0.01, 1.0, 10.0, 100.0])
Moments = dict[str, tuple[float, float | Tensor]]
#: the model, exact draws, and the true mean and variance of each site
TARGETS: dict[str, tuple[Callable[[], None], Callable[[int], dict[str, Tensor]], Moments]] = {
    "normal, 10": (normal(10), lambda n: {"x": torch.randn(n, 10)}, {"x": (0.0, 1.0)}),
    "normal, 100": (normal(100), lambda n: {"x": torch.randn(n, 100)}, {"x": (0.0, 1.0)}),
    "scales, 4": (scales, lambda n: {"x": torch.randn(n, 4) * SCALES}, {"x": (0.0, SCALES**2)}),
    "bananas, 10": (bananas, _bananas, {"a": (0.0, 1.0), "b": (1.0, 2.25)}),
    "gammas, 5": (gammas, lambda n: {"g": dist.Gamma(2.0, 1.0).sample((n, 5))}, {"g": (2.0, 2.0)}),
    "mixed, 12": (mixed, _mixed, {"x": (0.0, 100.0), "g": (2.0, 2.0), "p": (0.2, 0.16 / 11)}),
}


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
    kernels: list[Any] = [MCLMC(energy_error=error) for error in ERRORS]
    for target in arguments.targets:
        for kernel in [*kernels, HMC()]:
            for seed in arguments.seeds:
                with fixed_seed(seed), stopwatch() as watch:
                    found = _run(target, kernel)
                yield {"target": target, "seed": seed, **found, "cpu_seconds": watch.cpu_seconds}


def _run(target: str, kernel: Any) -> dict[str, Any]:
    model, exact, moments = TARGETS[target]
    chains = refine(model, exact(SETTINGS["num_chains"]), kernel=kernel, progress=False, **SETTINGS)
    squares = {
        name: (chains.draws[name].double() - mean) ** 2 / variance
        for name, (mean, variance) in moments.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes, of_squares = chains.effective_size(), effective_sizes(squares)
    errors = {name: float(value.mean()) - 1 for name, value in squares.items()}
    worst = max(errors, key=lambda name: abs(errors[name]))
    chance = float(squares[worst].std()) / math.sqrt(float(of_squares[worst].sum()))
    per_1000 = min(float(size.min()) for size in sizes.values())
    per_1000 /= (chains.num_steps - SETTINGS["num_warmup"]) * chains.num_chains / 1000
    return {
        "kernel": chains.settings["kernel"],
        "energy_error": getattr(kernel, "energy_error", None),
        "step_size": float(chains.sample_stats["step_size"].mean()),
        "worst": worst,
        "variance_error": errors[worst],
        "chance": chance,
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
