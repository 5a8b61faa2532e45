"""
What a training step of an implicit guide costs, in steps of MAP training of the same network.

Time: median of steps taken in turns in one process (CPU time, if it has one thread). Memory: growth
of the peak in a process of its own, from before the network is made. Guides A and B are the
published matrix-multiplication generators for LeNet (two hidden layers, one); all others lay
themselves out.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import resource
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.records import write_record
from benchmarks.shared.images import GUIDES, NETWORKS, NoEntropy, classifier, map_step
from pyro_implicit import LanczosELBO, LinearisedELBO, SingularValueELBO

LAZY = 4
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "no entropy": NoEntropy,
    "LinearisedELBO": LinearisedELBO,
    "SingularValueELBO(5)": partial(SingularValueELBO, num_iterations=5),
    "LanczosELBO(5)": partial(LanczosELBO, num_steps=5),
    "LanczosELBO(5), entropy on 1 draw": partial(LanczosELBO, num_steps=5, num_entropy_particles=1),
    f"LanczosELBO(5), every {LAZY}th step": partial(LanczosELBO, num_steps=5, entropy_every=LAZY),
}
#: network -> guides, rows of a minibatch
DEFAULTS: dict[str, tuple[tuple[str, ...], int]] = {
    "perceptron": (("mmnn",), 256),
    "lenet": (("B", "A"), 256),
    "wideresnet-16-4": (("cmmnn",), 8),
    "wideresnet-28-10": (("cmmnn",), 8),
}
#: MAP steps that a step with two draws may cost: objective -> with guide B, with guide A
GOALS = {
    "no entropy": (2.9, 3.2),
    "SingularValueELBO(5)": (5.5, 7.5),
    "LanczosELBO(5)": (5.0, 7.0),
    "LanczosELBO(5), entropy on 1 draw": (4.0, 5.0),
    f"LanczosELBO(5), every {LAZY}th step": (3.5, 4.0),
}
#: entries of one draw's Jacobian up to which LinearisedELBO is worth a try
DENSE = 10**7


@dataclass(frozen=True)
class Job:
    """One row of the table; no guide for MAP."""

    network: str
    batch_size: int
    guide: str | None = None
    objective: str = ""
    draws: int = 1
    how: str = "loop"


def jobs_of(network: str, arguments: Namespace) -> Iterator[Job]:
    guides, batch_size = DEFAULTS[network]
    batch_size = arguments.batch_size or batch_size
    yield Job(network, batch_size)
    for guide in arguments.guides or guides:
        for objective in arguments.objectives:
            for draws in arguments.draws:
                if draws == 1 and "1 draw" in objective:
                    continue
                for how in ("loop", "vmap") if draws > 1 else ("loop",):
                    yield Job(network, batch_size, guide, objective, draws, how)


class Bench:
    """Steps of all jobs of one network; those with the same guide train one guide in turns."""

    def __init__(self, network: str, batch_size: int, device: torch.device) -> None:
        self.make, shape = NETWORKS[network]
        self.device = device
        self.rows = torch.arange(batch_size, device=device)
        self.x = torch.randn(batch_size, *shape).to(device)
        self.y = torch.randint(10, (batch_size,)).to(device)
        self._shared: dict[str, tuple[Any, Any, Any]] = {}

    def step(self, job: Job) -> Callable[[], Any] | None:
        """One step of a job, or None where the objective is not feasible."""
        if job.guide is None:
            step, _ = map_step(self.make().to(self.device), lr=1e-3)
            return lambda: step(self.x, self.y)
        if job.guide not in self._shared:
            model, net = classifier(self.make().to(self.device), how="vmap")
            guide = GUIDES[job.guide](model).setup(*self._data)
            self._shared[job.guide] = (model, guide, pyro.optim.Adam({"lr": 1e-3}))
        model, guide, optimiser = self._shared[job.guide]
        noise = sum(sampler.generator.noise_dim for sampler in guide.samplers)
        if job.objective == "LinearisedELBO" and noise * guide.latent_dim > DENSE:
            return None
        elbo = OBJECTIVES[job.objective](
            job.draws, vectorize_particles=job.how == "vmap", max_plate_nesting=1
        )
        svi = SVI(model, guide, optimiser, elbo)
        return lambda: svi.step(*self._data)

    @property
    def _data(self) -> tuple[Any, ...]:
        return self.x, self.y, self.rows


def time_jobs(
    jobs: Sequence[Job], device: torch.device, rounds: int, quiet: bool
) -> dict[Job, float]:
    """Median milliseconds of a step of each feasible job, all jobs taken in turns."""
    bench = Bench(jobs[0].network, jobs[0].batch_size, device)
    steps = {job: step for job in jobs if (step := bench.step(job)) is not None}
    times: dict[Job, list[float]] = {job: [] for job in steps}
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter  # the former leaves other jobs out
    for index in tqdm(range(rounds + 1), desc=jobs[0].network, disable=quiet):
        for job, step in steps.items():
            repeats = LAZY if "every" in job.objective else 1  # one of them with entropy
            _wait(device)
            start = clock()
            for _ in range(repeats):
                step()
            _wait(device)
            if index:
                times[job].append(1e3 * (clock() - start) / repeats)
    return {job: statistics.median(values) for job, values in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_growth(job: Job, device: torch.device, threads: int) -> float:
    """Megabytes that a process's peak memory grows by in two steps (eight of a lazy objective)."""
    torch.set_num_threads(threads)
    with fixed_seed(0), pyro.validation_enabled(False):
        for small in (Job("lenet", 1), Job("perceptron", 1, "mmnn", "LanczosELBO(5)")):
            Bench(small.network, 1, device).step(small)()  # loads what is loaded at first use
        bench = Bench(job.network, job.batch_size, device)
        gc.collect()
        before = _reset_peak(device)
        step = bench.step(job)
        if step is None:
            return math.nan
        for _ in range(2 * LAZY if "every" in job.objective else 2):
            step()
        return (_peak(device) - before) / 1e6


def _reset_peak(device: torch.device) -> float:
    """Bytes in use now, which the peak is set to if the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # then the peak so far counts, the same for all jobs
    return _peak(device)


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure_memory(
    jobs: Sequence[Job], device: torch.device, threads: int, quiet: bool
) -> dict[Job, float]:
    """Peak growth of each job in megabytes, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for job in tqdm(jobs, desc=f"{jobs[0].network}, memory", disable=quiet):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found[job] = pool.submit(peak_growth, job, device, threads).result()
    return found


def _row(job: Job, ms: dict[Job, float], mb: dict[Job, float], reference: Job) -> dict[str, Any]:
    row = asdict(job) | {"ms": ms[job], "time": ms[job] / ms[reference]}
    if mb:
        row |= {"mb": mb[job], "memory": mb[job] / mb[reference]}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each job; time and memory in steps of MAP."""
    header = [key for key in rows[0] if key != "batch_size"]
    return format_table(header, [[row[key] for key in header] for row in rows])


def with_goals(rows: list[dict[str, Any]]) -> str:
    """Of LeNet: one line for each objective, number of draws and way to draw, beside its goals."""
    found: dict[tuple[str, int, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["network"] == "lenet" and row["guide"] is not None:
            key = (row["objective"], row["draws"], row["how"])
            found.setdefault(key, {})[row["guide"]] = row
    lines = []
    for (objective, draws, how), of in found.items():
        goals = GOALS.get(objective) if (draws, how) == (2, "loop") else None
        cells = [f"{of['B']['time']:.2f}", goals and goals[0]]
        cells += [f"{of['A']['time']:.2f}", goals and goals[1]]
        memory = ", ".join(f"{of[guide]['memory']:.1f}" for guide in "BA")
        lines.append([objective, draws, how, *cells, memory])
    header = ["objective", "draws", "how", "B: time", "B: goal", "A: time", "A: goal"]
    return format_table([*header, "B, A: memory"], lines)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    device = torch.device(arguments.device)
    rows = []
    for network in arguments.networks:
        jobs = list(jobs_of(network, arguments))
        with fixed_seed(arguments.seeds[0]), pyro.validation_enabled(False):
            ms = time_jobs(jobs, device, arguments.rounds, arguments.quiet)
        mb: dict[Job, float] = {}
        if not arguments.no_memory:
            mb = measure_memory(list(ms), device, arguments.threads, arguments.quiet)
        rows += [_row(job, ms, mb, jobs[0]) for job in ms]
        write_record("step_cost", arguments, {"validation": False}, rows)
    print(table(rows))
    return rows


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--networks", nargs="+", choices=NETWORKS, default=["lenet"])
    options.add_argument("--guides", nargs="+", choices=GUIDES, help="(default: by network)")
    options.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    options.add_argument("--draws", type=positive, nargs="+", default=[1, 2], metavar="S")
    options.add_argument("--batch-size", type=positive, metavar="N", help="(default: by network)")
    options.add_argument("--rounds", type=positive, default=15, help="(default: 15)")
    options.add_argument("--no-memory", action="store_true", help="time alone")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.add_argument("--device", default=device, help=f"(default: {device})")
    return options


if __name__ == "__main__":
    main()
