"""
Cost against the number of latents, from a thousand to 36.5 million.

For each network, in a process of its own: a CMMNNGuide is built, drawn from, its LanczosELBO
evaluated, and optimiser steps taken, beside MAP steps of the same network on the same batch. Times
are seconds (medians of steps; CPU time, if there is one thread), memory is the peak of the whole
process. Cost should grow no faster than the number of latents: the slope in the log-log plot
(`--figure`) is at most 1. The largest network needs 5 GB.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI
from torch import nn
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.networks import WideResNet
from benchmarks.records import write_record
from benchmarks.shared.images import NETWORKS, classifier, count, map_step
from pyro_implicit import CMMNNGuide, LanczosELBO

_COLOUR = (3, 32, 32)
POINTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": NETWORKS["perceptron"],
    "lenet": NETWORKS["lenet"],
    "wideresnet-10-1": (partial(WideResNet, 10, 1), _COLOUR),
    "wideresnet-10-2": (partial(WideResNet, 10, 2), _COLOUR),
    "wideresnet-16-2": (partial(WideResNet, 16, 2), _COLOUR),
    "wideresnet-16-4": NETWORKS["wideresnet-16-4"],
    "wideresnet-22-6": (partial(WideResNet, 22, 6), _COLOUR),
    "wideresnet-28-10": NETWORKS["wideresnet-28-10"],
}


def measure(name: str, batch_size: int, num_steps: int, seed: int, threads: int) -> dict[str, Any]:
    """All numbers of one network; to be called in a fresh process."""
    torch.set_num_threads(threads)
    make, shape = POINTS[name]
    rows = torch.arange(batch_size)
    with fixed_seed(seed), pyro.validation_enabled(False):
        data = (torch.randn(batch_size, *shape), torch.randint(10, (batch_size,)), rows)
        map_seconds = _map_seconds(make(), data, num_steps)
        found, guide, elbo, model = _phases(make, data)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), elbo)
        found["step"] = _median(lambda: svi.step(*data), num_steps)
        report = next(iter(elbo.last_report.values()))
    return {
        "network": name,
        "latents": guide.latent_dim,
        "parameters": count(guide),
        "noise": guide.samplers[0].generator.noise_dim,
        **found,
        "map_step": map_seconds,
        "relative": found["step"] / map_seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "half_log_det": [report.radau, report.gauss],
    }


def _map_seconds(module: nn.Module, data: tuple[Any, ...], num_steps: int) -> float:
    step, _ = map_step(module, lr=1e-3)
    return _median(lambda: step(*data[:2]), num_steps)


def _phases(
    make: Callable[[], nn.Module], data: tuple[Any, ...]
) -> tuple[dict[str, Any], CMMNNGuide, LanczosELBO, Callable[..., Any]]:
    """Builds, draws and evaluates, with the seconds of each."""
    seconds = {}
    start = _clock()
    model, _ = classifier(make())
    guide = CMMNNGuide(model, init_from=None).setup(*data)
    seconds["build"] = _clock() - start
    start = _clock()
    draws = guide.sample(1)
    seconds["draw"] = _clock() - start
    if not all(bool(value.isfinite().all()) for value in draws.values()):
        raise SystemExit("error: a draw is not finite")
    elbo = LanczosELBO(max_plate_nesting=1)
    start = _clock()
    loss = elbo.loss(model, guide, *data)
    seconds["evaluate"] = _clock() - start
    if not math.isfinite(loss):
        raise SystemExit(f"error: the objective is {loss}")
    return {**seconds, "loss_per_latent": loss / guide.latent_dim}, guide, elbo, model


def _clock() -> float:
    """Seconds of this process alone if it has one thread: other jobs do not count."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _median(job: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, the first one left out."""
    times = []
    for _ in range(repeats + 1):
        start = _clock()
        job()
        times.append(_clock() - start)
    return statistics.median(times[1:])


def slope(rows: Sequence[dict[str, Any]], key: str) -> float:
    """Slope of a least-squares line through the logarithms of ``key`` against latents."""
    x = [math.log(row["latents"]) for row in rows]
    y = [math.log(row[key]) for row in rows]
    return statistics.linear_regression(x, y).slope if len(rows) > 1 else math.nan


def draw_figure(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Seconds and memory against latents, with a line of slope 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x = [row["latents"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for key, label in (("step", "LanczosELBO(5)"), ("map_step", "MAP"), ("draw", "one draw")):
        left.loglog(x, [row[key] for row in rows], "o-", label=label)
    anchor = rows[-1]["step"] / rows[-1]["latents"]
    left.loglog(x, [anchor * n for n in x], "k:", label="slope 1")
    left.set(xlabel="latents", ylabel="seconds")
    left.legend()
    right.loglog(x, [row["peak_gb"] for row in rows], "o-")
    right.set(xlabel="latents", ylabel="peak memory of the process, GB")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each network."""
    header = [key for key in rows[0] if key not in ("half_log_det", "loss_per_latent")]
    return format_table(header, [[row[key] for key in header] for row in rows])


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    for name in tqdm(arguments.networks, disable=arguments.quiet):
        task = (name, arguments.batch_size, arguments.num_steps, arguments.seeds[0])
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            rows.append(pool.submit(measure, *task, arguments.threads).result())
        write_record("scaling", arguments, {"validation": False}, rows)
    rows.sort(key=lambda row: row["latents"])
    print(table(rows))
    large = [row for row in rows if row["latents"] > 1e5]
    print(
        f"\nslope of a step: {slope(rows, 'step'):.2f}; above 1e5 latents: "
        f"{slope(large, 'step'):.2f} (MAP: {slope(large, 'map_step'):.2f})"
    )
    if arguments.figure is not None:
        draw_figure(arguments.figure, rows)
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], figure="the log-log plot")
    options.add_argument("--networks", nargs="+", choices=POINTS, default=list(POINTS))
    options.add_argument("--batch-size", type=positive, default=8, metavar="N")
    options.add_argument("--num-steps", type=positive, default=5, help="timed (default: 5)")
    return options


if __name__ == "__main__":
    main()
