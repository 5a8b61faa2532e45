"""Pyro's objectives train on latents of rows that weigh as in the model, or not at all."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import LightningVI, MixtureDensityGuide, fit
from pyro_implicit.exceptions import SiteError

X, Y = torch.randn(2, 12)


def model(x: Tensor, y: Tensor) -> None:
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)


@pytest.mark.parametrize("objective", [None, Trace_ELBO(2)])
def test_rows_of_another_number_are_refused(objective: Any) -> None:
    guide = MixtureDensityGuide(model)
    fit(model, guide, X, Y, objective=objective, num_steps=3, progress=False)
    with pytest.raises(SiteError, match=r"'z' is in plate 'rows', which has 6 rows in all in the"):
        fit(model, guide, X[:6], Y[:6], objective=objective, num_steps=3, progress=False)


def test_batches_of_another_number_are_refused() -> None:
    guide = MixtureDensityGuide(model)
    batches = [(X[:8], Y[:8]), (X[8:], Y[8:])]
    with pytest.raises(SiteError, match=r"'z' is in plate 'rows', which has 4 rows in all in the"):
        fit(model, guide, batches=batches, num_steps=3, progress=False)


def test_latents_that_all_rows_share_are_not() -> None:
    def shared(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 12, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    batches = [(X[:6], Y[:6]), (X[6:], Y[6:])]
    fit(shared, AutoNormal(shared), batches=batches, num_steps=3, progress=False)


def test_weights_may_be_equal_by_another_way() -> None:
    def cut(x: Tensor, y: Tensor) -> None:
        with pyro.plate("rows", 12, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)

    @poutine.scale(scale=2.0)
    def guide(x: Tensor, y: Tensor) -> None:
        loc = pyro.param("loc", torch.zeros(()))
        with pyro.plate("rows", len(x)):
            pyro.sample("z", dist.Normal(loc, 1.0))

    batches = [(X[:6], Y[:6]), (X[6:], Y[6:])]
    fit(cut, guide, batches=batches, objective=Trace_ELBO(2), num_steps=3, progress=False)


def test_errors_of_the_model_are_told_by_the_step() -> None:
    def fails(x: Tensor) -> None:
        pyro.sample("z", dist.Normal(0.0, 1.0))
        raise ValueError("of the model")

    with pytest.raises(ValueError, match="of the model"):
        fit(fails, AutoNormal(fails), X, num_steps=3, progress=False)


def test_rows_that_weigh_less_in_a_plate_of_another_name() -> None:
    def cut(x: Tensor, y: Tensor) -> None:
        with pyro.plate("rows", 12, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 0.5), obs=y)

    def amortised(x: Tensor, y: Tensor) -> None:
        slope = pyro.param("slope", torch.tensor(0.5))
        with pyro.plate("batch", len(x)):
            pyro.sample("z", dist.Normal(slope * (y - x), 0.5))

    weighed: Any = poutine.scale(amortised, scale=12 / 4)
    batches = [(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)]
    options: dict[str, Any] = {"batches": batches, "num_steps": 3, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro tells of the other name
        fit(cut, weighed, objective=Trace_ELBO(), **options)
        with pytest.raises(SiteError, match="and 4 in the guide, which has no such plate"):
            fit(cut, amortised, objective=Trace_ELBO(), **options)


def test_lightning_looks_too() -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="needs the extra 'lightning'")
    guide = MixtureDensityGuide(model)
    guide(X, Y)
    loader = DataLoader(TensorDataset(X, Y), batch_size=6)
    trainer = pl.Trainer(
        limit_val_batches=0,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, of loaders
        with pytest.raises(SiteError, match="has 6 rows in all in the model and 12 in the guide"):
            trainer.fit(LightningVI(model, guide, Trace_ELBO()), loader)
