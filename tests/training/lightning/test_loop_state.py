"""Stops and resumes of all kinds, from checkpoints of all kinds: the end is that of no stop."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.training.lightning.problem import data, fit_module, flat, loader, trainer

COSINE = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=15)
EPOCHS = {"max_epochs": 3}  # of five steps


class Stopped(Exception):
    """The process that dies."""


class Watch(pl.Callback):
    """What each step was, and a death in the middle of one, before its checkpoint is written."""

    def __init__(self, steps, die):
        self.steps, self.die = steps, die

    def on_train_batch_start(self, trainer, module, batch, index):
        self.steps[trainer.global_step, index] = trainer.current_epoch, float(batch[0].sum())

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.die:
            raise Stopped


def stage(folder, steps, *, die=None, validate=False, checkpoints=None, **options):
    """One start of the same script; everything that it left, unless it died."""
    vi = fit_module(lr_scheduler=COSINE, num_val_samples=2)
    saver = ModelCheckpoint(folder, save_last=True, **(checkpoints or {}))
    options = EPOCHS | {"enable_checkpointing": True, "num_sanity_val_steps": 0} | options
    fit = trainer(callbacks=[Watch(steps, die), saver], **options)
    try:
        val = DataLoader(data(), batch_size=10) if validate else None
        fit.fit(vi, loader(), val, ckpt_path="last")
    except Stopped:
        return None
    loops = fit.global_step, fit.current_epoch, fit.fit_loop.epoch_loop._batches_that_stepped
    return flat(vi), vi._stream.state["torch"], torch.tensor(loops), fit.optimizers[0].state_dict()


def assert_same(first, second):
    leaves = [torch.utils._pytree.tree_leaves(x) for x in (first, second)]
    for a, b in zip(*leaves, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


PLANS = {
    "epoch by epoch": [{"max_epochs": 1}, {"max_epochs": 2}, {}],
    "max_steps within epochs": [{"max_steps": 3}, {"max_steps": 7}, {}],
    "max_steps at their ends": [{"max_steps": 5}, {"max_steps": 10}, {}],
    "a death": [{"die": 7}, {}],
    "deaths": [{"die": 5}, {"die": 6}, {"die": 11}, {}],
    "a run that had ended": [{}, {}],
}
CHECKPOINTS = {
    "default": {},
    "after validation": {"save_on_train_epoch_end": False},
    "after epochs": {"save_on_train_epoch_end": True},
    "every step": {"every_n_train_steps": 1},
    "every third step": {"every_n_train_steps": 3},
}
LOOPS = {
    "plain": {},
    "validation": {"validate": True},
    "frequent validation": {"validate": True, "val_check_interval": 2},
    "short epochs": {"limit_train_batches": 3},
    "accumulated gradients": {"accumulate_grad_batches": 2},
    "no epochs": {"max_epochs": -1, "max_steps": 12},
}
QUICK = {
    ("default", "plain", "deaths"),
    ("default", "validation", "a death"),
    ("default", "no epochs", "max_steps within epochs"),
    ("after validation", "frequent validation", "max_steps within epochs"),
    ("every third step", "accumulated gradients", "deaths"),
    ("every step", "short epochs", "epoch by epoch"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            steps = {}
            made[name] = stage(tmp_path_factory.mktemp("whole"), steps, **LOOPS[name]), steps
        return made[name]

    return get


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize(
    ("checkpoints", "loops", "plan"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in itertools.product(CHECKPOINTS, LOOPS, PLANS)
        if each[1:] != ("no epochs", "epoch by epoch")
    ],
)
def test_stopped_and_resumed_is_never_stopped(tmp_path, whole, checkpoints, loops, plan):
    expected, expected_steps = whole(loops)
    steps = {}
    for options in PLANS[plan]:
        options = {**LOOPS[loops], **options, "checkpoints": CHECKPOINTS[checkpoints]}
        end = stage(tmp_path, steps, **options)
    if plan == "a run that had ended":  # nothing is trained, so that no loop counts its end
        end, expected = ((x[0], x[1], x[2][:1], x[3]) for x in (end, expected))
    assert_same(end, expected)
    assert steps == expected_steps
