"""
What an implicit guide costs, as ratios of CPU times taken in turns in one run, medians.

Three questions: one SVI step of a 105-weight network with 8 vectorised particles against the same
step with AutoNormal and Trace_ELBO; vectorised against looped particles; value and gradient of the
exact linearised entropy of a 100 -> 100 -> 751 generator for 5 draws against forward Jacobians
(StochMan) and an m x m determinant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import stochman.nnj as nnj
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.cost._speed_timing import Job, medians
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.generators import MLPGenerator

SCALE = 0.01
PARTICLES = 8
#: of a ratio; one has none
GOALS = {
    "implicit / AutoNormal, one vectorised step": "<= 3",
    "looped / vectorised particles, implicit": ">= 3",
    "entropy: package / Jacobian and m x m": "<= 0.5",
}


def toy_step(make_guide: Callable[[Any], Any], objective: Any) -> Job:
    """One SVI step on 100 rows of a 1-8-8-1 network."""
    x = torch.linspace(-1, 1, 100)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(100)
    layers = [nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)]
    net = BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        f = net(x).squeeze(-1)
        with pyro.plate("data", 100, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    svi = SVI(model, make_guide(model), pyro.optim.Adam({"lr": 1e-3}), objective)
    return lambda: svi.step(x, y)


def step_jobs() -> dict[str, Job]:
    """The two guides, with vectorised and with looped particles."""
    fast: dict[str, Any] = {"num_particles": PARTICLES, "vectorize_particles": True}
    bare = partial(HyperNetworkGuide, init_from=None)
    return {
        "AutoNormal, vectorised": toy_step(AutoNormal, Trace_ELBO(**fast, max_plate_nesting=1)),
        "implicit, vectorised": toy_step(bare, LinearisedELBO(**fast)),
        "AutoNormal, looped": toy_step(AutoNormal, Trace_ELBO(PARTICLES)),
        "implicit, looped": toy_step(bare, LinearisedELBO(PARTICLES)),
    }


def entropy_jobs() -> dict[str, Job]:
    """Value and gradient of the exact entropy, by the package and by two longer routes."""
    generator = MLPGenerator(100, 751, (100,))
    plain = nnj.Sequential(nnj.Linear(100, 100), nnj.Tanh(), nnj.Linear(100, 751))
    z = torch.randn(5, 100)

    def package() -> None:
        generator.half_log_det(z, SCALE).sum().backward()

    def by_jacobian() -> None:
        _, jac = plain(z, jacobian=True)
        gram = jac.mT @ jac + SCALE**2 * torch.eye(100)
        torch.linalg.cholesky(gram).diagonal(dim1=-2, dim2=-1).log().sum().backward()

    def by_large_determinant() -> None:
        _, jac = plain(z, jacobian=True)
        cov = jac.double() @ jac.double().mT + SCALE**2 * torch.eye(751, dtype=torch.float64)
        torch.linalg.cholesky(cov).diagonal(dim1=-2, dim2=-1).log().sum().backward()

    return {
        "entropy: package": package,
        "entropy: Jacobian, d x d": by_jacobian,
        "entropy: Jacobian, m x m": by_large_determinant,
    }


def ratios(ms: dict[str, float]) -> dict[str, float]:
    """The four ratios that are reported."""
    return {
        "implicit / AutoNormal, one vectorised step": ms["implicit, vectorised"]
        / ms["AutoNormal, vectorised"],
        "looped / vectorised particles, implicit": ms["implicit, looped"]
        / ms["implicit, vectorised"],
        "entropy: package / Jacobian and m x m": ms["entropy: package"]
        / ms["entropy: Jacobian, m x m"],
        "entropy: package / Jacobian and d x d": ms["entropy: package"]
        / ms["entropy: Jacobian, d x d"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each time and each ratio."""
    return format_table(["what", "of", "value"], [list(row.values()) for row in rows])


def with_goals(rows: list[dict[str, Any]]) -> str:
    """The ratios alone, beside their goals."""
    found = [(row["of"], row["value"]) for row in rows if row["what"] == "ratio"]
    return format_table(
        ["ratio", "value", "goal"], [[*one, GOALS.get(one[0], "")] for one in found]
    )


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__, seeds=[0])
    options.add_argument("--rounds", type=positive, default=60, help="(default: 60)")
    options.add_argument("--warm-up", type=int, default=3, help="rounds before (default: 3)")
    arguments = parse(options, argv)
    rounds = (arguments.rounds, arguments.warm_up, time.process_time, arguments.quiet)
    with fixed_seed(arguments.seeds[0]):
        ms = medians(step_jobs(), *rounds)
        ms |= medians(entropy_jobs(), *rounds)
    found = {"median ms": ms, "ratio": ratios(ms)}
    rows = [
        {"what": what, "of": name, "value": value}
        for what, values in found.items()
        for name, value in values.items()
    ]
    print(table(rows))
    write_record("overhead", arguments, {"particles": PARTICLES}, rows)
    return rows


if __name__ == "__main__":
    main()
