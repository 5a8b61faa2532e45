"""One small problem for all tests of training, made anew by each process that needs it."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pyro
import pyro.distributions as dist
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pyro_implicit import (
    AdversarialELBO,
    HyperNetworkGuide,
    LanczosELBO,
    LightningVI,
    LinearisedELBO,
)
from pyro_implicit.training import ResumableLoader

ROWS, BATCH = 20, 4
OBJECTIVES = {
    "linearised": partial(LinearisedELBO, 2),
    "lazy lanczos": partial(LanczosELBO, 2, num_steps=2, entropy_every=3),
    "adversarial": partial(AdversarialELBO, 2, num_samples=20, num_critic_steps=1),
}


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        pyro.sample("y", dist.Normal((w * x).sum(-1), 0.3), obs=y)


def data() -> TensorDataset:
    x = torch.linspace(-1.0, 1.0, 2 * ROWS).sin().reshape(ROWS, 2)
    return TensorDataset(x, x.sum(-1) + 0.1 * torch.cos(7 * x[:, 0]))


def fit_module(objective: str = "linearised", **options: Any) -> LightningVI:
    """With the same parameters whenever and wherever it is called."""
    pyro.set_rng_seed(3)
    pyro.clear_param_store()
    # Bare also where no conftest.py makes it so: in the processes that tests start.
    guide = HyperNetworkGuide(model, hidden_dims=(8,), init_from=None)
    return LightningVI(model, guide, OBJECTIVES[objective](), **options)


def loader(dataset: Dataset | None = None, cls: Any = ResumableLoader, **options: Any) -> Any:
    return cls(dataset or data(), batch_size=BATCH, shuffle=True, **options)


def trainer(folder: Path | None = None, **options: Any) -> pl.Trainer:
    """Quiet; with a checkpoint after every step if there is a folder for them."""
    callbacks = options.pop("callbacks", [])
    if folder is not None:
        callbacks = [*callbacks, ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1)]
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "devices": 1} | options
    options = {"enable_checkpointing": folder is not None} | options
    return pl.Trainer(
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def quiet() -> None:
    """For scripts: what Lightning says of any small run on a CPU."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


__all__ = ["DataLoader", "data", "fit_module", "flat", "loader", "model", "quiet", "trainer"]
