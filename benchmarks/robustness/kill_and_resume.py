"""
Kill a run at random points, resume it from its last checkpoint, compare the ends bit by bit.

A Bayesian neural network with any objective, random augmentation of the data by torch, NumPy and
Python, shuffled minibatches, a learning-rate schedule, KL warm-up, gradient clipping, with
validation or without, trained with Lightning and its default checkpoints (at the end of an epoch)
or some after every few steps. For each kind one run is left alone. Each other one is killed
(SIGKILL) at random instants, once or several times, perhaps within the writing of a checkpoint, and
started again with the same command, ``ckpt_path="last"``, until it ends. Compared are the
parameters, the states of both optimisers, the critic, the random state and the number of steps; and
every checkpoint file that a kill left behind is read.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import multiprocessing
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm.auto import tqdm

from benchmarks.common import format_table, parse, parser, positive
from benchmarks.records import write_record
from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    BayesianModule,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LightningVI,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit._files import atomic_path
from pyro_implicit.training import ResumableLoader, linear_schedule
from pyro_implicit.training.lightning import Anneal
from pyro_implicit.training.lightning.checkpoint_io import AtomicCheckpointIO

SETTINGS: dict[str, Any] = {"rows": 60, "batch_size": 8, "hidden": 8, "checkpoint_every": 2}
OBJECTIVES: dict[str, Any] = {
    "linearised": lambda: LinearisedELBO(2),
    "lanczos": lambda: LanczosELBO(2, entropy_every=3),
    "singular": lambda: SingularValueELBO(2),
    "kernel": lambda: KernelDensityRatioELBO(2, num_samples=20),
    "adversarial": lambda: AdversarialELBO(2, num_samples=20, num_critic_steps=2),
    "semi": lambda: SemiImplicitELBO(2, num_inner=5),
    "predictive": lambda: PosteriorPredictiveLoss(5),
    "alpha": lambda: AlphaEnergy(4),
}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "default": {},
    "steps": {
        "every_n_train_steps": SETTINGS["checkpoint_every"],
        "save_top_k": 2,
        "monitor": "train_loss",
    },
}


@dataclass(frozen=True)
class Kind:
    """What is trained, and how."""

    objective: str
    checkpoints: str
    validation: bool
    epochs: int
    seed: int


class Jittered(Dataset):
    """Rows with noise of three libraries on the inputs: each visit sees other ones."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        jitter = torch.randn(1) + float(np.random.randn()) + random.gauss(0.0, 1.0)
        return self.x[index] + 0.01 * jitter, self.y[index]


def train(folder: Path, kind: Kind, step: Any = None) -> None:
    """The whole run, or what is left of it; at its end a file with a digest of everything."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    pyro.set_rng_seed(kind.seed)
    rows, hidden, batch = SETTINGS["rows"], SETTINGS["hidden"], SETTINGS["batch_size"]
    x = torch.linspace(-1, 1, rows)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(rows)
    layers = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    net = BayesianModule(layers, dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", rows, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    objective = OBJECTIVES[kind.objective]()
    steps = _num_steps(kind)
    vi = LightningVI(
        model,
        HyperNetworkGuide(model, hidden_dims=(10,), scale=0.05, init_from=None),
        objective,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        lr_scheduler=partial(CosineAnnealingLR, T_max=steps),
        num_val_samples=4,
    )
    callbacks = [
        Anneal(objective, "kl_weight", linear_schedule(0.0, 1.0, max(1, steps // 2))),
        _Counter(step),
        ModelCheckpoint(folder, save_last=True, **CHECKPOINTS[kind.checkpoints]),
    ]
    trainer = pl.Trainer(
        max_epochs=kind.epochs, callbacks=callbacks, gradient_clip_val=100.0, accelerator="cpu",
        devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    loader = ResumableLoader(Jittered(x, y), batch_size=batch, shuffle=True, seed=kind.seed)
    validation = DataLoader(TensorDataset(x, y), batch_size=rows) if kind.validation else None
    trainer.fit(vi, loader, validation, ckpt_path="last")
    with atomic_path(folder / "digest") as path:
        path.write_text(_digest(vi, trainer))


def _num_steps(kind: Kind) -> int:
    return kind.epochs * math.ceil(SETTINGS["rows"] / SETTINGS["batch_size"])


class _Counter(pl.Callback):
    """Tells the parent process how far this one is."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.step is not None:
            self.step.value = trainer.global_step


def _digest(vi: LightningVI, trainer: pl.Trainer) -> str:
    parts = [
        vi.state_dict(),
        trainer.optimizers[0].state_dict(),
        vi.objective.state_dict(),
        vi._stream.state["torch"],
        trainer.global_step,
        trainer.current_epoch,
    ]
    found = hashlib.sha256()
    for leaf in torch.utils._pytree.tree_leaves(parts):
        found.update(leaf.numpy().tobytes() if isinstance(leaf, Tensor) else repr(leaf).encode())
    return found.hexdigest()


def _start(*args: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=train, args=args)
    process.start()
    return process


def _finish(*args: Any) -> None:
    process = _start(*args)
    process.join()
    if process.exitcode:
        raise SystemExit(f"error: a run ended with exit status {process.exitcode}")


def killed_run(folder: Path, kind: Kind, instants: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """
    Starts a run, kills it some seconds after a step began, checks what it left, starts it again,
    and lets it end after the last kill.

    :param instants: step and delay of each kill; one that the run does not come to ends it.
    :returns: the steps that it was killed in, those of the checkpoints that it resumed from, and
        what the kills left.
    """
    killed, resumed, read, left = [], [], 0, 0
    for at_step, delay in instants:
        step = multiprocessing.get_context("fork").Value("i", -1)
        process = _start(folder, kind, step)
        while step.value < at_step and process.is_alive():
            time.sleep(0.0005)
        time.sleep(delay)
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            break  # it had ended
        killed.append(step.value)
        files = sorted(folder.glob("*.ckpt"))
        saved = {f.name: AtomicCheckpointIO().load_checkpoint(f)["global_step"] for f in files}
        resumed.append(saved.get("last.ckpt", 0))
        read += len(files)
        left += len(list(folder.glob(".*.partial")))
    _finish(folder, kind)
    return {
        "killed in step": killed,
        "resumed from": resumed,
        "files, all read": read,
        "half-written temporary": left,
    }


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns one row per run that was killed."""
    arguments = parse(_options(), argv)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        draw = random.Random(seed)
        kinds = [
            Kind(objective, checkpoints, validation == "yes", arguments.epochs, seed)
            for objective in arguments.objectives
            for checkpoints in arguments.checkpoints
            for validation in arguments.validation
        ]
        draw.shuffle(kinds)
        with tempfile.TemporaryDirectory() as name, tqdm(disable=arguments.quiet) as bar:
            whole: dict[Kind, tuple[str, float]] = {}
            kills = 0
            while kills < arguments.kills:
                kind = kinds[len(rows) % len(kinds)]
                if kind not in whole:
                    whole[kind] = _whole_run(Path(name) / f"whole {len(whole)}", kind)
                expected, pause = whole[kind]
                folder = Path(name) / str(len(rows))
                instants = _instants(draw, kind, arguments.kills - kills, pause)
                row = killed_run(folder, kind, instants)
                kills += len(row["killed in step"])
                bar.update(len(row["killed in step"]))
                same = (folder / "digest").read_text() == expected
                rows.append(asdict(kind) | row | {"same end": same})
    print(table(rows))
    settings = SETTINGS | {"epochs": arguments.epochs}
    write_record("kill_and_resume", arguments, settings, rows)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each kind of checkpoint, and one for all."""
    kinds = dict.fromkeys(row["checkpoints"] for row in rows)
    lines = []
    for kind in (*kinds, "all"):
        own = [row for row in rows if kind in (row["checkpoints"], "all")]
        kills = [step for row in own for step in row["killed in step"]]
        resumed = [step for row in own for step in row["resumed from"]]
        same = f"{sum(row['same end'] for row in own)} of {len(own)}"
        files = sum(row["files, all read"] for row in own)
        left = sum(row["half-written temporary"] for row in own)
        lines.append([kind, len(own), len(kills), resumed.count(0), files, left, same])
    header = ["checkpoints", "runs", "kills", "before any checkpoint", "files, all read"]
    return format_table([*header, "half-written temporary", "same end, bit by bit"], lines)


def _whole_run(folder: Path, kind: Kind) -> tuple[str, float]:
    """The digest at its end, and the seconds that a step took."""
    begin = time.perf_counter()
    _finish(folder, kind)
    return (folder / "digest").read_text(), (time.perf_counter() - begin) / _num_steps(kind)


def _instants(draw: random.Random, kind: Kind, most: int, pause: float) -> list[tuple[int, float]]:
    """One to three kills, each later in the run than the last one."""
    count = min(draw.choice([1, 1, 1, 2, 3]), most)
    steps = sorted(draw.randrange(_num_steps(kind) - 1) for _ in range(count))
    return [(step, draw.uniform(0.0, pause)) for step in steps]


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--kills", type=positive, default=20, help="for a seed (default: 20)")
    options.add_argument("--epochs", type=positive, default=4, help="(default: 4)")
    for name, choices in (
        ("objectives", list(OBJECTIVES)),
        ("checkpoints", list(CHECKPOINTS)),
        ("validation", ["yes", "no"]),
    ):
        options.add_argument(
            f"--{name}", nargs="+", choices=choices, default=choices, help="(default: all)"
        )
    return options


if __name__ == "__main__":
    main()
