"""
Kill a run at random points, resume it from its last checkpoint, compare the ends bit by bit.

A Bayesian neural network, an adversarial objective with its critic, random augmentation of the data
by torch, NumPy and Python, shuffled minibatches, a learning-rate schedule, KL warm-up, gradient
clipping and validation, trained with Lightning. One run is left alone. Each other one is killed
(SIGKILL) at a random instant, perhaps within the writing of a checkpoint, and started again with
the same command, ``ckpt_path="last"``, until it ends. Compared are the parameters, the states of
both optimisers, the critic and the random state; and every checkpoint file that a kill left behind
is read.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Sequence
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

from benchmarks._common import format_table, parse, parser, positive, write_record
from pyro_implicit import (
    AdversarialELBO,
    Anneal,
    BayesianModule,
    HyperNetworkGuide,
    LightningVI,
    ResumableLoader,
    linear_schedule,
)
from pyro_implicit.training.checkpoint_io import AtomicCheckpointIO

SETTINGS: dict[str, Any] = {"rows": 120, "batch_size": 8, "hidden": 20, "checkpoint_every": 2}


class Jittered(Dataset):
    """Rows with noise of three libraries on the inputs: each visit sees other ones."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        jitter = torch.randn(1) + float(np.random.randn()) + random.gauss(0.0, 1.0)
        return self.x[index] + 0.01 * jitter, self.y[index]


def train(folder: Path, epochs: int, seed: int, step: Any = None) -> None:
    """The whole run, or what is left of it; at its end a file with a digest of everything."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    pyro.set_rng_seed(seed)
    rows, hidden = SETTINGS["rows"], SETTINGS["hidden"]
    x = torch.linspace(-1, 1, rows)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(rows)
    layers = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    net = BayesianModule(layers, dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", rows, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    objective = AdversarialELBO(2, num_samples=50, num_critic_steps=2)
    batch = SETTINGS["batch_size"]
    steps = epochs * (rows // batch)
    vi = LightningVI(
        model,
        HyperNetworkGuide(model, hidden_dims=(30,)),
        objective,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        lr_scheduler=partial(CosineAnnealingLR, T_max=steps),
        num_val_samples=4,
    )
    callbacks = [
        Anneal(objective, "kl_weight", linear_schedule(0.0, 1.0, steps // 2)),
        _Counter(step),
        ModelCheckpoint(
            folder,
            every_n_train_steps=SETTINGS["checkpoint_every"],
            save_last=True,
            save_top_k=2,
            monitor="train_loss",
        ),
    ]
    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=callbacks, gradient_clip_val=100.0, accelerator="cpu",
        devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    loader = ResumableLoader(Jittered(x, y), batch_size=batch, shuffle=True, seed=seed)
    trainer.fit(vi, loader, DataLoader(TensorDataset(x, y), batch_size=rows), ckpt_path="last")
    (folder / "digest").write_text(_digest(vi, trainer))


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


def killed_run(folder: Path, epochs: int, seed: int, at_step: int, delay: float) -> dict[str, Any]:
    """
    Starts a run, kills it ``delay`` seconds after step ``at_step`` began, checks what it left, and
    resumes it.

    :returns: the step that it was killed in, the step of the checkpoint that it resumed from, and
        what the kill left.
    """
    step = multiprocessing.get_context("fork").Value("i", -1)
    process = _start(folder, epochs, seed, step)
    while step.value < at_step and process.is_alive():
        time.sleep(0.0005)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise SystemExit(f"error: the run had ended by itself, with status {process.exitcode}")
    files = sorted(folder.glob("*.ckpt"))
    saved = {file.name: AtomicCheckpointIO().load_checkpoint(file)["global_step"] for file in files}
    left = len(list(folder.glob("*.partial")))
    _finish(folder, epochs, seed)
    return {
        "killed in step": step.value,
        "resumed from": saved.get("last.ckpt", 0),
        "files, all read": len(files),
        "half-written temporary": left,
    }


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns one row per kill."""
    arguments = parse(_options(), argv)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        instants = random.Random(seed)
        with tempfile.TemporaryDirectory() as name:
            whole = Path(name) / "whole"
            begin = time.perf_counter()
            _finish(whole, arguments.epochs, seed)
            steps = arguments.epochs * (SETTINGS["rows"] // SETTINGS["batch_size"])
            pause = (time.perf_counter() - begin) / steps
            expected = (whole / "digest").read_text()
            for trial in tqdm(range(arguments.kills), disable=arguments.quiet):
                folder = Path(name) / str(trial)
                at_step, delay = instants.randrange(steps - 2), instants.uniform(0.0, pause)
                row = killed_run(folder, arguments.epochs, seed, at_step, delay)
                same = (folder / "digest").read_text() == expected
                rows.append({"seed": seed, "kill": trial} | row | {"same end": same})
    header = list(rows[0])
    print(format_table(header, [[str(row[name]) for name in header] for row in rows]))
    print(f"{sum(row['same end'] for row in rows)} of {len(rows)} ends are the same bits")
    settings = SETTINGS | {"epochs": arguments.epochs}
    write_record("benchmarks.kill_and_resume", arguments, settings, rows)
    return rows


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--kills", type=positive, default=20, help="(default: 20)")
    options.add_argument("--epochs", type=positive, default=6, help="(default: 6)")
    return options


if __name__ == "__main__":
    main()
