"""
What do many draws cost a model that is written for one? A step of the default guide and its
LinearisedELBO on models in two forms: for one draw (x @ w, level[group], loc[which]), and with the
draws in a plate in front. Draws one after the other, mapped by vmap, in the plate, and the latter
two recorded; CPU time of this process, jobs in turns, medians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import config_enumerate
from pyro.ops.indexing import Vindex
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.cost._speed_timing import Job, Row, medians
from benchmarks.records import write_record
from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.training import RecordedObjective

SETTINGS: dict[str, Any] = {"num_rows": 100, "num_draws": 8}
Model = Callable[..., Any]
X = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randn(100, generator=torch.Generator().manual_seed(1))


def regression(product: Callable[[Tensor, Tensor], Tensor]) -> Model:
    """Five weights and a noise."""

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(product(x, w), s), obs=y)

    return model


def groups(lookup: Callable[[Tensor, Tensor], Tensor]) -> Model:
    """A level of each of ten groups."""

    def model(x: Tensor, y: Tensor) -> None:
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("groups", 10):
            level = pyro.sample("level", dist.Normal(0.0, tau))
        with pyro.plate("data", len(x)):
            mean = lookup(level, torch.arange(len(x)) % 10)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def mixture(lookup: Callable[[Tensor, Tensor], Tensor]) -> Model:
    """Three components, which of them is summed out."""

    @config_enumerate
    def model(x: Tensor, y: Tensor) -> None:
        p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
        loc = pyro.sample("loc", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        with pyro.plate("data", len(x)):
            which = pyro.sample("which", dist.Categorical(p))
            pyro.sample("y", dist.Normal(lookup(loc, which), 1.0), obs=y)

    return model


#: for one draw, and for a plate of draws
MODELS: dict[str, tuple[Model, Model]] = {
    "regression": (regression(lambda x, w: x @ w), regression(lambda x, w: (x * w).sum(-1))),
    "groups": (groups(lambda level, i: level[i]), groups(lambda level, i: level[..., i])),
    "mixture": (mixture(lambda loc, i: loc[i]), mixture(lambda loc, i: Vindex(loc)[..., i])),
}


def step(model: Model, way: Any, num_draws: int, recorded: bool) -> Job:
    """One step's loss and gradients, with a store of its own: guides have the same name."""
    store = pyro.get_param_store()
    with store.scope() as state:
        guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective: Any = LinearisedELBO(num_draws, vectorize_particles=way)
    if recorded:
        objective = RecordedObjective(objective, hints=False)

    def job() -> None:
        with store.scope(state):
            objective.loss_and_grads(model, guide, X, Y)
        for parameter in guide.parameters():
            parameter.grad = None

    return job


def jobs(name: str) -> dict[str, Job]:
    """A model's ways, the loop first."""
    one, many = MODELS[name]
    draws = SETTINGS["num_draws"]
    return {
        "one after the other": step(one, False, draws, False),
        "vmap": step(one, "vmap", draws, False),
        "plate": step(many, True, draws, False),
        "vmap, recorded": step(one, "vmap", draws, True),
        "plate, recorded": step(many, True, draws, True),
        "vmap, recorded, four times the draws": step(one, "vmap", 4 * draws, True),
    }


def table(rows: list[Row]) -> str:
    """One line for each way."""
    header = ["model", "draws", "CPU ms", "of the loop"]
    lines = [[r["model"], r["method"], f"{r['cpu_ms']:.1f}", f"{r['ratio']:.2f}"] for r in rows]
    return format_table(header, lines)


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__, seeds=[0])
    options.add_argument("--rounds", type=positive, default=30, help="(default: 30)")
    options.add_argument("--warm-up", type=int, default=8, help="rounds before (default: 8)")
    arguments = parse(options, argv)
    rows: list[Row] = []
    for name in tqdm(MODELS, disable=arguments.quiet):
        pyro.clear_param_store()
        with fixed_seed(arguments.seeds[0]):
            ms = medians(jobs(name), arguments.rounds, arguments.warm_up)
        loop = ms["one after the other"]
        rows += [
            {"model": name, "method": way, "cpu_ms": value, "ratio": value / loop}
            for way, value in ms.items()
        ]
    print(table(rows))
    write_record("mapped_draws", arguments, SETTINGS, rows)
    return rows


if __name__ == "__main__":
    main()
