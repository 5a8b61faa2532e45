"""Files that are complete or absent."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from lightning.pytorch.plugins.io import TorchCheckpointIO

from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.training.lightning.checkpoint_io import AtomicCheckpointIO


def checkpoint(value=1.0):
    state = {"weight": torch.full((1000,), value)}
    return {"state_dict": state, "pytorch-lightning_version": "2.6.0", "epoch": 3}


def read(path):
    return AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["weight"][0].item()


def test_what_is_saved_is_read(tmp_path):
    path = tmp_path / "new folder" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)
    assert AtomicCheckpointIO().load_checkpoint(path)["epoch"] == 3
    AtomicCheckpointIO().save_checkpoint(checkpoint(2.0), str(path))
    assert read(path) == 2.0
    assert os.listdir(path.parent) == ["last.ckpt"]


@pytest.mark.parametrize("where", ["save", "fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, where):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(torch if where == "save" else os, where, fail)
    with pytest.raises(OSError, match="no space left"):
        AtomicCheckpointIO().save_checkpoint(checkpoint(2.0), path)
    assert read(path) == 1.0
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_the_order_is_write_flush_check_rename(tmp_path, monkeypatch):
    """The name only ever stands for a file that is on the disk and can be read."""
    path, order = tmp_path / "last.ckpt", []

    def spied(name, original):
        def spy(*args, **options):
            order.append((name, path.exists()))
            return original(*args, **options)

        return spy

    for module, name in ((os, "fsync"), (torch, "load"), (os, "replace")):
        monkeypatch.setattr(module, name, spied(name, getattr(module, name)))
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)
    assert order[:3] == [("fsync", False), ("load", False), ("replace", False)]


def test_what_is_no_plain_value_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)
    with pytest.raises(StateError, match="neither tensor nor plain value.*save_hyperparameters"):
        AtomicCheckpointIO().save_checkpoint(checkpoint() | {"model": torch.nn.Linear(1, 1)}, path)
    assert read(path) == 1.0
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, share):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(StateError, match=r"last.ckpt cannot be read as a checkpoint: .*truncated"):
        AtomicCheckpointIO().load_checkpoint(path)


def test_foreign_files(tmp_path):
    path = tmp_path / "last.ckpt"
    path.write_text("not a checkpoint")
    with pytest.raises(StateError, match="cannot be read as a checkpoint"):
        AtomicCheckpointIO().load_checkpoint(path)
    torch.save(torch.nn.Linear(1, 1), path)
    with pytest.raises(StateError, match="cannot be read as a checkpoint"):
        AtomicCheckpointIO().load_checkpoint(path)
    for content in ({"weight": torch.ones(1)}, torch.ones(1)):
        torch.save(content, path)
        with pytest.raises(StateError, match="lacks state_dict and pytorch-lightning_version"):
            AtomicCheckpointIO().load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "absent.ckpt")


def test_no_file_may_run_code(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)
    with pytest.raises(ArgumentError, match="weights_only=False would let the file run code"):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=False)


def test_remote_paths_and_options_are_lightnings(monkeypatch):
    seen = []
    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", lambda *args: seen.append(args[2:]))
    AtomicCheckpointIO().save_checkpoint({}, "memory://bucket/last.ckpt")
    AtomicCheckpointIO().save_checkpoint({}, "last.ckpt", storage_options={"a": 1})
    assert seen == [("memory://bucket/last.ckpt", None), ("last.ckpt", {"a": 1})]


def test_it_replaces_the_default_and_nothing_else():
    class Own(TorchCheckpointIO):
        pass

    class Strategy:
        checkpoint_io = TorchCheckpointIO()

    strategy = Strategy()
    AtomicCheckpointIO.replace_default(strategy)
    assert type(strategy.checkpoint_io) is AtomicCheckpointIO
    strategy.checkpoint_io = own = Own()
    AtomicCheckpointIO.replace_default(strategy)
    assert strategy.checkpoint_io is own


def test_a_planted_link_is_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "last.ckpt"
    victim.write_text("precious")
    path.with_name("last.ckpt.partial").symlink_to(victim)
    AtomicCheckpointIO().save_checkpoint(checkpoint(), path)
    assert victim.read_text() == "precious"
    assert read(path) == 1.0


def test_inside_of_a_class_that_wraps_another():
    class Wrapping:
        _checkpoint_io = TorchCheckpointIO()

    class Strategy:
        checkpoint_io = Wrapping()

    AtomicCheckpointIO.replace_default(Strategy())
    assert type(Strategy.checkpoint_io._checkpoint_io) is AtomicCheckpointIO


@pytest.mark.parametrize("version", [None, "text", 2.0])
def test_a_version_that_is_none(tmp_path, version):
    path = tmp_path / "last.ckpt"
    torch.save(checkpoint() | {"pytorch-lightning_version": version}, path)
    with pytest.raises(StateError, match="its version is"):
        AtomicCheckpointIO().load_checkpoint(path)
