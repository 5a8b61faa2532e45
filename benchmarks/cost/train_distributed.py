"""
Train an image network's implicit posterior on as many devices as there are; runs unchanged on one
CPU, on two processes of a CPU, or on the GPUs of several machines.

    python -m benchmarks.cost.train_distributed --devices 2 --accelerator cpu
    python -m benchmarks.cost.train_distributed                      # all GPUs of this machine
    torchrun --nnodes 4 --nproc-per-node 8 \\
        -m benchmarks.cost.train_distributed --num-nodes 4 --devices 8

Start it again with the same command and it goes on from its last checkpoint. Every process has its
own share of each batch of the data (``--spread data``), or all have the same batch and different
draws (``--spread particles``); parameters are the same in all of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from benchmarks.common import parse, parser, positive
from benchmarks.shared.images import GUIDES, NETWORKS, classifier, load_mnist
from pyro_implicit import LanczosELBO, LightningVI
from pyro_implicit.training import ResumableLoader


class RandomImages(Dataset):
    """Images of noise, for the times of networks whose data are not at hand."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self.count, self.shape = count, shape

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        images = torch.Generator().manual_seed(index)
        x = torch.randn(self.shape, generator=images)
        return x, torch.tensor(index % 10), torch.tensor(index)


def dataset(arguments: argparse.Namespace) -> Dataset:
    if arguments.network != "lenet" or arguments.random_images:
        return RandomImages(arguments.num_train, NETWORKS[arguments.network][1])
    data = load_mnist(arguments.data_root, download=False)
    x, y = data["x_train"][: arguments.num_train], data["y_train"][: arguments.num_train]
    return TensorDataset((x - 0.1307) / 0.3081, y, torch.arange(len(x)))


class _Clock(pl.Callback):
    """Seconds from the end of the first step to the end of the last one."""

    def __init__(self) -> None:
        self.begin = self.end = 0.0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.end = time.perf_counter()
        self.begin = self.begin or self.end


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains; returns the time of a step and the last loss, of this process."""
    arguments = parse(_options(), argv)
    if arguments.quiet:
        warnings.filterwarnings("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    pl.seed_everything(arguments.seeds[0], verbose=False)  # the same start in all processes
    data = dataset(arguments)
    model, net = classifier(NETWORKS[arguments.network][0](), len(data))  # type: ignore[arg-type]
    guide = GUIDES[arguments.guide](model, scale=0.01, init_scale=0.05)
    vi = LightningVI(
        model,
        guide,
        LanczosELBO(arguments.num_particles),
        optimizer=partial(torch.optim.Adam, lr=arguments.lr),
        modules=[net],
        seed=arguments.seeds[0],
    )
    clock, callbacks = _Clock(), []
    if arguments.checkpoints:
        callbacks = [
            ModelCheckpoint(arguments.checkpoints, every_n_train_steps=100, save_last=True)
        ]
    trainer = pl.Trainer(
        accelerator=arguments.accelerator,
        devices=arguments.devices,
        num_nodes=arguments.num_nodes,
        strategy="ddp" if arguments.devices != "1" or arguments.num_nodes > 1 else "auto",
        use_distributed_sampler=arguments.spread == "data",
        precision=arguments.precision,
        max_steps=arguments.steps,
        callbacks=[clock, *callbacks],
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=not arguments.quiet,
        enable_model_summary=False,
        gradient_clip_val=arguments.clip,
    )
    loader = ResumableLoader(data, batch_size=arguments.batch_size, shuffle=True)
    trainer.fit(vi, loader, ckpt_path="last" if callbacks else None)
    seconds = (clock.end - clock.begin) / max(trainer.global_step - 1, 1)
    result = {
        "processes": trainer.world_size,
        "seconds per step": seconds,
        "data per second": arguments.batch_size * trainer.world_size / seconds,
        "parameters": sum(p.numel() for p in vi.parameters() if p.requires_grad),
        "latents": guide.latent_dim,
        "loss": float(trainer.callback_metrics["train_loss"]),
    }
    if trainer.is_global_zero:
        print(json.dumps(result))
    return result


def _options() -> argparse.ArgumentParser:
    options = parser(__doc__ or "", seeds=[0])
    options.add_argument("--network", choices=NETWORKS, default="lenet")
    options.add_argument("--guide", choices=GUIDES, default="B")
    options.add_argument("--accelerator", default="auto", help="(default: auto)")
    options.add_argument("--devices", default="auto", help="per machine (default: all)")
    options.add_argument("--num-nodes", type=positive, default=1, help="machines (default: 1)")
    options.add_argument("--spread", choices=("data", "particles"), default="data")
    options.add_argument("--precision", default="32-true", help="or bf16-mixed")
    options.add_argument("--steps", type=positive, default=1000, help="(default: 1000)")
    options.add_argument("--batch-size", type=positive, default=256, help="per process")
    options.add_argument("--num-particles", type=positive, default=2, help="per process")
    options.add_argument("--num-train", type=positive, default=60_000, help="use the first N")
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--clip", type=float, default=None, help="norm of gradients")
    options.add_argument("--random-images", action="store_true", help="in the place of MNIST")
    options.add_argument("--checkpoints", type=Path, metavar="DIR", help="resume from there")
    return options


if __name__ == "__main__":
    main()
