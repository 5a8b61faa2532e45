"""
What torch.compile does for the generator and the likelihood of LeNet, and for the recorded graph
of a whole step of small models, as RecordedObjective(jit_compile=True) takes it: times of a draw,
of an evaluation with gradients and of a step without its optimiser, as they are and compiled, and
the time of compiling. Needs a C++ compiler.

Random numbers of a step are torch's own either way, so that losses agree to rounding. Variants are
timed in turns; the fastest round of each counts. ``--backend eager`` runs everything but the code
generation, as a check.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.common import format_table, parse, parser, positive
from benchmarks.cost._speed_models import TARGETS
from benchmarks.cost._speed_recorded import Graph, recorded_graph
from benchmarks.records import write_record
from benchmarks.shared.images import GUIDES, NETWORKS, classifier, count
from pyro_implicit import HyperNetworkGuide, LinearisedELBO
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


def step(
    name: str, num_particles: int, along_path: bool, backend: str
) -> tuple[Graph, Callable[[Any], None], int, Any, float]:
    """
    The recorded graph of a step of a small model, its run, and the guide's parameters.

    :returns: with them the compiled graph and the seconds of compiling.
    """
    target = TARGETS[name]()
    guide = HyperNetworkGuide(target.model, init_from=None)
    guide.setup(*target.args)
    objective = LinearisedELBO(num_particles, vectorize_particles=True, path_gradient=along_path)
    is_ours = backend == "inductor"
    call = (objective, target.model, guide, target.args)
    graph, compiled = recorded_graph(*call, jit_compile=is_ours)
    if is_ours and compiled is None:
        raise RuntimeError("the step was not compiled")
    seconds = 0.0 if compiled is None else compiled.seconds

    def run(call: Any) -> None:
        call(*target.args)

    return graph, run, count(guide), compiled or torch.compile(graph, backend=backend), seconds


def compiled_part(module: Any, run: Callable[[Any], None], backend: str) -> tuple[Any, float]:
    """A module as it is compiled, and the seconds of its first run."""
    options: Any = {"fallback_random": True} if backend == "inductor" else None
    compiled = torch.compile(module, backend=backend, options=options)
    begin = time.perf_counter()
    run(compiled)
    return compiled, time.perf_counter() - begin


def measure(
    module: Any, run: Callable[[Any], None], compiled: Any, seconds: float, rounds: int
) -> dict[str, Any]:
    """Seconds of CPU time, eager and compiled, beside those of compiling."""
    run(compiled)
    result: dict[str, Any] = {"compiling": seconds}
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    for _ in range(rounds):
        for name, call in (("eager", module), ("compiled", compiled)):
            cpu = time.process_time()
            run(call)
            times[name].append(time.process_time() - cpu)
    result |= {name: min(values) for name, values in times.items()}
    gain = result["eager"] - result["compiled"]
    pays = result["compiling"] / gain if gain > 0 else None
    return result | {"ratio": result["compiled"] / result["eager"], "pays after": pays}


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each row."""
    return format_table(list(rows[0]), [list(row.values()) for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    torch.manual_seed(arguments.seeds[0])
    rows: list[dict[str, Any]] = []
    for name, (module, run, number, compiled, seconds) in _parts(arguments):
        row = {"part": name, "parameters": number}
        rows.append(row | measure(module, run, compiled, seconds, arguments.rounds))
        write_record("compile", arguments, {}, rows)
    print(table(rows))
    return rows


def _parts(arguments: Any) -> Iterator[tuple[str, tuple[Any, Any, int, Any, float]]]:
    for name, (module, run) in {
        f"generator {arguments.guide}": draw(arguments.network, arguments.guide),
        f"likelihood, batch {arguments.batch_size}": likelihood(
            arguments.network, arguments.batch_size
        ),
    }.items():
        compiled, seconds = compiled_part(module, run, arguments.backend)
        yield name, (module, run, count(module), compiled, seconds)
    for name in arguments.targets:
        for along_path, way in ((False, ""), (True, ", along the path")):
            made = step(name, arguments.num_particles, along_path, arguments.backend)
            yield f"step, {name}{way}", made


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--network", choices=NETWORKS, default="lenet")
    options.add_argument("--guide", choices=GUIDES, default="B")
    options.add_argument("--batch-size", type=positive, default=256)
    options.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    options.add_argument("--num-particles", type=positive, default=32)
    options.add_argument("--rounds", type=positive, default=20, help="(default: 20)")
    options.add_argument("--backend", default="inductor", help="(default: inductor)")
    return options


if __name__ == "__main__":
    main()
