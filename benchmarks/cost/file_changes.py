"""
How many files of the package a draw and a data row pass through.

What a reader with a debugger meets: the calls of the package's functions in three jobs on a small
regression with 16 weights and a noise, once all is built. A change is a call into another file than
that of the call before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from torch import Tensor, nn

import pyro_implicit
from benchmarks.common import fixed_seed, format_table, parse, parser
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LanczosELBO, LinearisedELBO, to_arviz

ROOT = f"{Path(pyro_implicit.__file__).parent}/"
ROWS = 20


def make_jobs() -> dict[str, Callable[[], Any]]:
    """The three jobs, by name; each builds what it needs at its first run."""
    x = torch.linspace(-1, 1, ROWS)[:, None]
    y = torch.sin(3 * x[:, 0])
    layers = [nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)]
    net = BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        f = net(x).squeeze(-1)
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(f, sigma), obs=y)

    guide = HyperNetworkGuide(model, noise_dim=5, hidden_dims=(10,), init_from=None)
    both = {"num_particles": 2, "vectorize_particles": True, "max_plate_nesting": 1}
    steps = [
        SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), objective)
        for objective in (LanczosELBO(), LinearisedELBO(**both))
    ]
    return {
        "LanczosELBO, a step": lambda: steps[0].step(x, y),
        "LinearisedELBO, a step of two draws at once": lambda: steps[1].step(x, y),
        "to_arviz, two draws": lambda: to_arviz(model, guide, x, y, num_samples=2),
    }


def files_called(job: Callable[[], Any]) -> list[str]:
    """The file of each call of a function of the package, in order."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            found.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
    return found


def measure(job: Callable[[], Any]) -> dict[str, int]:
    """Files, calls and changes of file, after two runs that build and remember."""
    job()
    job()
    found = files_called(job)
    changes = sum(one != other for one, other in zip(found, found[1:], strict=False))
    return {"files": len(set(found)), "calls": len(found), "changes": changes}


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each job."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(parser(__doc__, seeds=[0]), argv)
    with fixed_seed(arguments.seeds[0]):
        rows = [{"job": name, **measure(job)} for name, job in make_jobs().items()]
    print(table(rows))
    write_record("file_changes", arguments, {}, rows)
    return rows


if __name__ == "__main__":
    main()
