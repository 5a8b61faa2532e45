"""
Memory per latent by the optimiser, and what that does to the loss.

memory  for each network and way, in a process of its own: what the peak of the process grows by
        while a CMMNNGuide is made and trained for a few steps of LanczosELBO (one draw, batch 8)
loss    LeNet on MNIST with the same kind of guide: the loss a row after so many steps, on 2000 rows
        that were trained on; the rate of each optimiser is that of the lowest loss of another
        seed on 2000 rows kept apart

Ways: Adam as SVI takes it, which keeps gradients from step to step; optimisers of torch whose
gradients are forgotten after each step; and the same inside the backward pass, a parameter at a
time, where gradients never are there all at once. With "memory given back" the process runs under
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ (glibc): what is freed does not stay with it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI
from torch import Tensor, nn
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, positive
from benchmarks.networks import WideResNet
from benchmarks.records import write_record
from benchmarks.shared.images import NETWORKS, classifier, load_mnist
from pyro_implicit import CMMNNGuide, LanczosELBO

SETTINGS: dict[str, Any] = {
    "memory_steps": 2,
    "memory_batch": 8,
    "num_draws": 2,
    "batch_size": 128,
    "rates": {"Adam": (1e-3, 3e-3, 1e-2), "Adafactor": (3e-3, 1e-2, 3e-2)},
    "rate_seed": 100,
    "rate_steps": 100,
    "loss_steps": 300,
    "loss_rows": 2000,
}
_COLOUR = (3, 32, 32)
POINTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": NETWORKS["perceptron"],
    "wideresnet-22-6": (partial(WideResNet, 22, 6), _COLOUR),
    "wideresnet-28-10": NETWORKS["wideresnet-28-10"],
    "wideresnet-28-20": (partial(WideResNet, 28, 20), _COLOUR),
}
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": partial(torch.optim.Adam, fused=True),
    "Adafactor": partial(torch.optim.Adafactor, foreach=False),
}
SVI_WAY = "Adam by SVI"
#: way -> optimiser, and whether it moves parameters inside the backward pass
WAYS: dict[str, tuple[str, bool]] = {
    "Adam": ("Adam", False),
    "Adam, in backward": ("Adam", True),
    "Adafactor": ("Adafactor", False),
    "Adafactor, in backward": ("Adafactor", True),
}
GIVEN_BACK = ", memory given back"
_THRESHOLDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_SMALL = str(2**18)  # bytes above which what is freed goes back to the system
Row = dict[str, Any]
Step = Callable[..., None]


def step_of(way: str, model: Any, guide: Any, elbo: Any, lr: float) -> Step:
    """
    A training step of the guide on some data.

    :param str way: a name of ``WAYS``, or that of Adam by SVI.
    """
    if way == SVI_WAY:
        return SVI(model, guide, pyro.optim.Adam({"lr": lr}), elbo).step
    name, inside = WAYS[way.removesuffix(GIVEN_BACK)]
    params = [param for param in guide.parameters() if param.requires_grad]
    if inside:
        return _step_inside(OPTIMISERS[name], params, model, guide, elbo, lr)
    optimiser = OPTIMISERS[name](params, lr=lr)

    def step(*data: Any) -> None:
        elbo.loss_and_grads(model, guide, *data)
        optimiser.step()
        optimiser.zero_grad()  # they are None until the next backward pass

    return step


def _step_inside(
    make: Callable[..., Any], params: list[Any], model: Any, guide: Any, elbo: Any, lr: float
) -> Step:
    """Each parameter moves, and its gradient is forgotten, as soon as that is complete."""
    optimisers = {param: make([param], lr=lr) for param in params}

    def move(param: Tensor) -> None:
        optimisers[param].step()
        param.grad = None

    for param in params:
        param.register_post_accumulate_grad_hook(move)

    def step(*data: Any) -> None:
        elbo.differentiable_loss(model, guide, *data).backward()

    return step


# ---- memory


def memory(name: str, way: str, seed: int, threads: int, settings: dict[str, Any]) -> Row:
    """Bytes and seconds of one way; to be called in a fresh process."""
    torch.set_num_threads(threads)
    make, shape = POINTS[name]
    batch = settings["memory_batch"]
    with fixed_seed(seed), pyro.validation_enabled(False):
        _take(way, *NETWORKS["perceptron"], batch, 1)  # what is paid once, whatever the size
        before = _peak()
        latents, seconds = _take(way, make, shape, batch, settings["memory_steps"])
    grown = _peak() - before
    row = {"part": "memory", "network": name, "way": way, "latents": latents, "step": seconds}
    return row | {"peak_gb": _peak() / 1e9, "bytes_per_latent": grown / latents}


def _in_process(task: tuple[str, str], seed: int, threads: int, settings: dict[str, Any]) -> Row:
    """:func:`memory` in a fresh process, whose allocator is told when it starts."""
    before = {name: os.environ.get(name) for name in _THRESHOLDS}
    if task[1].endswith(GIVEN_BACK):
        os.environ.update(dict.fromkeys(_THRESHOLDS, _SMALL))
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(memory, *task, seed, threads, settings).result()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _take(
    way: str, make: Callable[[], nn.Module], shape: tuple[int, ...], batch: int, steps: int
) -> tuple[int, float]:
    data = (torch.randn(batch, *shape), torch.randint(10, (batch,)), torch.arange(batch))
    model, _ = classifier(make())
    guide = CMMNNGuide(model, init_from=None).setup(*data)
    step = step_of(way, model, guide, LanczosELBO(max_plate_nesting=1), 1e-3)
    times = []
    for _ in range(steps + 1):
        start = time.process_time()
        step(*data)
        times.append(time.process_time() - start)
    pyro.clear_param_store()
    return guide.latent_dim, statistics.median(times[1:])


def _peak() -> float:
    """Bytes of this process at its largest."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- loss


def losses(
    root: Path, seeds: Sequence[int], quiet: bool, settings: dict[str, Any]
) -> Iterator[Row]:
    """Rows of each optimiser and seed at the rate that was chosen for it."""
    data = load_mnist(root, download=False)
    count = settings["loss_rows"]
    apart = data["x_train"][-count:], data["y_train"][-count:], torch.arange(count)
    seen = data["x_train"][:count], data["y_train"][:count], torch.arange(count)
    data["x_train"], data["y_train"] = data["x_train"][:-count], data["y_train"][:-count]
    for name, rates in settings["rates"].items():
        train = partial(_trained, name, data, settings)
        choice = (settings["rate_seed"], settings["rate_steps"], apart)
        found = {lr: train(lr, *choice) for lr in tqdm(rates, desc=name, disable=quiet)}
        best = min(found, key=lambda lr: found[lr])
        for seed in tqdm(seeds, desc=name, disable=quiet):
            loss = train(best, seed, settings["loss_steps"], seen)
            yield {"part": "loss", "way": name, "seed": seed, "rate": best, "loss": loss}


def _trained(
    name: str,
    data: dict[str, Tensor],
    settings: dict[str, Any],
    lr: float,
    seed: int,
    num_steps: int,
    judge: tuple[Tensor, Tensor, Tensor],
) -> float:
    """The loss a row of LeNet after so many steps; draws and batches are those of the seed."""
    with fixed_seed(seed), pyro.validation_enabled(False):
        x, y = data["x_train"], data["y_train"]
        model, _ = classifier(NETWORKS["lenet"][0](), num_data=len(x))
        guide = CMMNNGuide(model, init_from=None).setup(x[:2], y[:2], torch.arange(2))
        elbo = LanczosELBO(settings["num_draws"], max_plate_nesting=1)
        step = step_of(name, model, guide, elbo, lr)
        for _ in range(num_steps):
            rows = torch.randint(len(x), (settings["batch_size"],))
            step(x[rows], y[rows], rows)
        torch.manual_seed(seed)
        with torch.no_grad():
            value = LanczosELBO(8, num_steps=20, max_plate_nesting=1).loss(model, guide, *judge)
    pyro.clear_param_store()
    return value / len(x)


# ---- what is told of them


def table(rows: list[Row]) -> str:
    """One line for each network and way."""
    lines = [
        [row["network"], row["way"], row["latents"], row["bytes_per_latent"], row["peak_gb"]]
        + [row["step"]]
        for row in rows
        if row["part"] == "memory"
    ]
    header = ["network", "way", "latents", "bytes a latent", "peak GB", "CPU s a step"]
    return format_table(header, [[*line[:3], f"{line[3]:.0f}", *line[4:]] for line in lines])


def loss_table(rows: list[Row]) -> str:
    """One line for each optimiser, and the mean difference to Adam by seed."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row["part"] == "loss":
            found.setdefault(row["way"], {})[row["seed"]] = row
    lines = []
    for way, own in found.items():
        rate = next(iter(own.values()))["rate"]
        values = ", ".join(f"{row['loss']:.3f}" for row in own.values())
        apart = [row["loss"] - found["Adam"][seed]["loss"] for seed, row in own.items()]
        said = "" if way == "Adam" else f"{statistics.mean(apart):+.3f} ({_error(apart)})"
        lines.append([way, f"{rate:g}", values, said])
    return format_table(["optimiser", "rate", "loss a row, by seed", "beyond Adam (SE)"], lines)


def _error(values: list[float]) -> str:
    return f"{statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else "-"


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=[0, 1, 2])
    ways = [SVI_WAY, *WAYS, *(way + GIVEN_BACK for way in WAYS)]
    usual = [SVI_WAY, *(way for way in ways if way.endswith(GIVEN_BACK))]
    options.add_argument("--networks", nargs="*", choices=POINTS, default=["wideresnet-22-6"])
    options.add_argument("--ways", nargs="+", choices=ways, default=usual)
    options.add_argument("--large", nargs="*", choices=POINTS, default=[], help="by the last way")
    options.add_argument("--no-loss", action="store_true", help="memory alone")
    options.add_argument("--memory-steps", type=positive, default=2, help="(default: 2)")
    arguments = parse(options, argv)
    settings = SETTINGS | {"memory_steps": arguments.memory_steps}
    rows: list[Row] = []
    tasks = [(network, way) for network in arguments.networks for way in arguments.ways]
    tasks += [(network, arguments.ways[-1]) for network in arguments.large]
    for task in tqdm(tasks, disable=arguments.quiet):
        rows.append(_in_process(task, arguments.seeds[0], arguments.threads, settings))
        write_record("lean", arguments, settings, rows)
    if not arguments.no_loss:
        for row in losses(arguments.data_root, arguments.seeds, arguments.quiet, settings):
            rows.append(row)
            write_record("lean", arguments, settings, rows)
    print(table(rows))
    print(loss_table(rows))
    return rows


if __name__ == "__main__":
    main()
