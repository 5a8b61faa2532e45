"""
What torch.compile does for the generator and for the likelihood of LeNet: times of one draw and one
evaluation with gradients, eager and compiled, and the time of compiling. Needs a C++ compiler.

Variants are timed in turns; the fastest round of each counts. ``--backend eager`` runs everything
but the code generation, as a check.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.common import format_table, parse, parser, positive
from benchmarks.records import write_record
from benchmarks.shared.images import GUIDES, NETWORKS, classifier, count
from pyro_implicit.generators.base import Generator


def _generator(network: str, guide: str) -> Generator:
    module, shape = NETWORKS[network][0](), NETWORKS[network][1]
    model, _ = classifier(module)
    made = GUIDES[guide](model)
    made.setup(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.long), torch.arange(2))
    return made.samplers[0].generator


def draw(network: str, guide: str) -> tuple[torch.nn.Module, Callable[[Any], None]]:
    """A generator, and one draw with its gradients."""
    generator = _generator(network, guide)
    z = torch.randn(1, *generator.noise_shape)

    def run(call: Any) -> None:
        generator.zero_grad()
        call(z).square().sum().backward()

    return generator, run


def likelihood(network: str, batch_size: int) -> tuple[torch.nn.Module, Callable[[Any], None]]:
    """A network with given weights, and its log-likelihood with their gradients."""
    made, shape = NETWORKS[network]
    module = made()
    x, y = torch.randn(batch_size, *shape), torch.randint(0, 10, (batch_size,))

    def run(call: Any) -> None:
        module.zero_grad()
        F.cross_entropy(call(x), y).backward()

    return module, run


def measure(
    module: torch.nn.Module, run: Callable[[Any], None], backend: str, rounds: int
) -> dict[str, float]:
    """Seconds of CPU time, eager and compiled, and of the first compiled run."""
    compiled = torch.compile(module, backend=backend)
    begin = time.perf_counter()
    run(compiled)
    result = {"compiling": time.perf_counter() - begin}
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    for _ in range(rounds):
        for name, call in (("eager", module), ("compiled", compiled)):
            cpu = time.process_time()
            run(call)
            times[name].append(time.process_time() - cpu)
    result |= {name: min(values) for name, values in times.items()}
    return result | {"ratio": result["compiled"] / result["eager"]}


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    torch.manual_seed(arguments.seeds[0])
    rows = []
    for name, (module, run) in {
        f"generator {arguments.guide}": draw(arguments.network, arguments.guide),
        f"likelihood, batch {arguments.batch_size}": likelihood(
            arguments.network, arguments.batch_size
        ),
    }.items():
        row = {"part": name, "parameters": count(module)}
        rows.append(row | measure(module, run, arguments.backend, arguments.rounds))
        write_record("compile", arguments, {}, rows)
    print(table(rows))
    return rows


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--network", choices=NETWORKS, default="lenet")
    options.add_argument("--guide", choices=GUIDES, default="B")
    options.add_argument("--batch-size", type=positive, default=256)
    options.add_argument("--rounds", type=positive, default=20, help="(default: 20)")
    options.add_argument("--backend", default="inductor", help="(default: inductor)")
    return options


if __name__ == "__main__":
    main()
