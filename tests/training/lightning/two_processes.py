"""
Two processes with gloo on the CPU, started by test_two_processes.py; writes what each rank saw.

``python -m tests.training.lightning.two_processes FOLDER union|critic``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from tests.training.lightning.problem import fit_module, flat, loader, quiet, trainer


class Witness(pl.Callback):
    """Keeps the first batch, the gradients of the first step, and the state of the noise."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen = path, {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.seen["start"] = flat(pl_module)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen.setdefault("batch", [part.clone() for part in batch])
        self.seen.setdefault("noise", pl_module._stream.state["torch"])

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.setdefault("grad", torch.cat([p.grad.flatten() for p in pl_module.parameters()]))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.seen["end"] = flat(pl_module)
        critics = getattr(pl_module.objective, "critics", {})
        self.seen["critic"] = [flat(critic) for critic in critics.values()]
        torch.save(self.seen, f"{self.path}-{trainer.global_rank}.pt")


def run(folder: Path, name: str, objective: str, ckpt_path: Path | None = None, **options: Any):
    fit = trainer(
        folder / name,
        devices=2,
        strategy="ddp_fork",
        callbacks=[Witness(folder / name)],
        **options,
    )
    fit.fit(fit_module(objective, seed=5), loader(), ckpt_path=ckpt_path)


def main(folder: Path, which: str) -> None:
    quiet()
    if which == "union":
        run(folder, "union", "linearised")
        return
    run(folder, "same batches", "adversarial", use_distributed_sampler=False)
    middle = next((folder / "same batches").glob("*step=3.ckpt"))
    run(folder, "resumed", "adversarial", ckpt_path=middle, use_distributed_sampler=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
