"""Checkpoints that were damaged, changed by hand or made elsewhere, and those never written."""

from __future__ import annotations

import copy
import os
import pickle
import random

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from lightning.pytorch.callbacks import Callback

from pyro_implicit import LightningVI, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, StateError
from pyro_implicit.training.lightning.checkpoint_io import AtomicCheckpointIO
from tests.training.lightning.problem import data, fit_module, flat, loader, trainer
from tests.training.lightning.test_resume import COSINE


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint in the middle of an epoch."""
    folder = tmp_path_factory.mktemp("saved")
    fit = trainer(folder, max_steps=3)
    fit.fit(fit_module(lr_scheduler=COSINE), loader())
    return next(folder.glob("*step=3.ckpt"))


def resume(path, objective=None, folder=None):
    vi = fit_module(lr_scheduler=COSINE)
    if objective is not None:
        vi.objective = objective
    trainer(folder, max_steps=4).fit(vi, loader(), ckpt_path=path)
    return vi


# ---- damaged files


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_flipped_bit_or_missing_end_is_silent(saved, tmp_path, count):
    """What is read at all is what was written, to the last bit."""
    good, draw, refused = saved.read_bytes(), random.Random(0), 0
    expected = torch.utils._pytree.tree_leaves(torch.load(saved, weights_only=True))
    path = tmp_path / "changed.ckpt"
    for trial in range(count):
        content = bytearray(good)
        if trial % 5 == 0:
            content = content[: draw.randrange(len(good))]
        else:
            content[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            found = AtomicCheckpointIO().load_checkpoint(path)
        except StateError:
            refused += 1
            continue
        for a, b in zip(torch.utils._pytree.tree_leaves(found), expected, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert refused > count / 3


# ---- no file runs code


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["archive", "legacy", "pickle"])
@pytest.mark.parametrize("route", ["validate", "load_from_checkpoint", "load from a file"])
def test_no_route_executes_a_pickle(saved, tmp_path, monkeypatch, how, route):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # as torch's default once was
    path, mark = tmp_path / "evil.ckpt", tmp_path / "executed"
    content = torch.load(saved, weights_only=True) | {"evil": Evil(mark)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content["evil"]))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "archive")
    vi = fit_module()
    parts = {"model": vi.model, "guide": vi.guide, "objective": vi.objective}
    with pytest.raises(StateError, match="cannot be read as a checkpoint"):
        if route == "validate":
            val = DataLoader(data(), batch_size=10)
            trainer().validate(vi, val, ckpt_path=path, verbose=False)
        elif route == "load_from_checkpoint":
            LightningVI.load_from_checkpoint(path, **parts)
        else:
            with path.open("rb") as file:
                LightningVI.load_from_checkpoint(file, **parts)
    assert not mark.exists()


def test_weights_only_false_is_refused(saved):
    vi = fit_module()
    with pytest.raises(ArgumentError, match="weights_only=False would let the file run code"):
        LightningVI.load_from_checkpoint(
            saved, model=vi.model, guide=vi.guide, objective=vi.objective, weights_only=False
        )


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(StateError, match="it is a folder"):
        AtomicCheckpointIO().load_checkpoint(tmp_path)


# ---- what is never written


class Poison(Callback):
    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == 3:
            next(module.parameters()).data.fill_(torch.nan)


def test_a_checkpoint_with_a_parameter_that_is_not_finite_is_never_written(tmp_path):
    with pytest.raises(NonFiniteError, match="older ones stay: parameter guide.*is not finite"):
        trainer(tmp_path, callbacks=[Poison()]).fit(fit_module(), loader())
    assert sorted(path.name[-6:] for path in tmp_path.iterdir()) == ["1.ckpt", "2.ckpt"]


# ---- changed by hand


def test_another_setting_of_the_objective_is_warned_of(saved, tmp_path):
    with pytest.warns(UserWarning, match=r"LinearisedELBO and .*num_particles=2 \(here 3\)"):
        resume(saved, LinearisedELBO(3), tmp_path)


def entries(value, path=()):
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in pairs:
        yield (*path, key)
        if isinstance(entry, (dict, list, tuple)):
            yield from entries(entry, (*path, key))


VALUES = (None, "text", -1, 10**12, float("nan"), [], {}, torch.zeros(7), "delete")


def mutants(content, draw, count):
    paths = sorted(entries(content), key=str)
    for _ in range(count):
        path, value = draw.choice(paths), draw.choice(VALUES)
        changed = copy.deepcopy(content)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        if isinstance(holder, tuple):
            continue
        if isinstance(value, str) and value == "delete":
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
        yield path, value, changed


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [25, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_changed_checkpoint_is_refused_by_name_or_trains(saved, tmp_path, count):
    """Whatever entry is changed: no raw error, and no parameter that is not finite."""
    content, path = torch.load(saved, weights_only=True), tmp_path / "changed.ckpt"
    refused, draw = 0, random.Random(count)
    for where, value, changed in mutants(content, draw, count):
        torch.save(changed, path)
        try:
            vi = resume(path)
        except StateError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{where} = {value!r}: {error!r}") from error
        else:
            assert flat(vi).isfinite().all(), (where, value)
    assert refused > count / 3
