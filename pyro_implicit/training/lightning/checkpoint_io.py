"""Checkpoint files that are complete or absent, and hold nothing but tensors and plain values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.plugins.io import TorchCheckpointIO
from packaging.version import InvalidVersion, Version

from pyro_implicit._checks import shown
from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.saving import check_archive, save_state, unreadable

__all__ = ["AtomicCheckpointIO"]

#: what every file that Lightning has written holds
_KEYS_OF_LIGHTNING_FILES = ("state_dict", "pytorch-lightning_version")


class AtomicCheckpointIO(TorchCheckpointIO):
    """
    How Lightning reads and writes checkpoints in the local file system, safe against a kill.

    A kill or a power cut at any instant leaves the old file or the new one: the file is written
    under another name (``.*.partial``), flushed to the disk, read back (its structure, without the
    tensors' contents), and only then takes the place of the old one, in one step. Files are
    compared with their checksums, and read with ``weights_only=True``, so that none can run code.

    :class:`~pyro_implicit.LightningVI` takes it in the place of Lightning's default by itself; any
    other Lightning module takes ``Trainer(plugins=[AtomicCheckpointIO()])``. Remote paths (with
    ``://``) are written by Lightning's own class: an object store replaces whole files anyway.
    """

    @classmethod
    def replace_default(cls, strategy: Any) -> None:
        """
        Takes the place of Lightning's default, not of a class that the user chose.

        :param strategy: that of a trainer.
        """
        holder, io = strategy, strategy.checkpoint_io
        while getattr(io, "_checkpoint_io", None) is not None:  # one that wraps another
            holder, io = io, io._checkpoint_io
        if type(io) is TorchCheckpointIO:
            setattr(holder, "checkpoint_io" if holder is strategy else "_checkpoint_io", cls())

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """
        Writes a checkpoint, whole or not at all.

        :param dict checkpoint: what to save.
        :param path: where to.
        :raises StateError: if it could not be read back with ``weights_only=True``, because
            something in it (of a callback, say, or of ``save_hyperparameters()``) is neither tensor
            nor plain value; the old file is left as it was.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        save_state(checkpoint, target)

    def load_checkpoint(
        self,
        path: Any,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """
        Reads a checkpoint, if it is whole and cannot run code.

        :param path: of a file written by Lightning, or the file, open; then it is at its beginning
            afterwards.
        :param map_location: as for ``torch.load``.
        :param bool weights_only: True or None, which is the same here.
        :raises StateError: if it is truncated, damaged, or no checkpoint.
        :raises ArgumentError: for ``weights_only=False``.
        :raises FileNotFoundError: if there is no such file.
        """
        self.check_file(path, weights_only)
        is_open = hasattr(path, "read")
        name = "the file" if is_open else str(path)
        try:
            if is_open:
                checkpoint: dict[str, Any] = torch.load(path, map_location, weights_only=True)
                path.seek(0)
            else:
                checkpoint = super().load_checkpoint(path, map_location, weights_only=True)
        except Exception as error:  # the unpickler may raise anything
            raise unreadable(name, error) from error
        _check_entries(checkpoint, name)
        return checkpoint

    @staticmethod
    def check_file(path: Any, weights_only: bool | None = None) -> None:
        """
        Compares a file with its checksums.

        :param path: of it, local or remote, or the file, open.
        :param bool weights_only: what the caller was asked for, if anything.
        :raises StateError: if it is truncated, damaged, or no checkpoint.
        :raises ArgumentError: for ``weights_only=False``, which nothing here accepts.
        :raises FileNotFoundError: if there is no such file.
        """
        if weights_only is False:
            raise ArgumentError(
                "weights_only=False would let the file run code; what LightningVI saves does not "
                "need it. Leave it out."
            )
        if hasattr(path, "read"):
            check_archive(path, "the file")
            return
        if get_filesystem(path).isdir(str(path)):
            raise StateError(f"{path} cannot be read as a checkpoint: it is a folder.")
        with get_filesystem(path).open(str(path), "rb") as file:
            check_archive(file, str(path))


def _check_entries(checkpoint: Any, path: str) -> None:
    """Lightning itself trusts these, before any module sees the checkpoint."""
    found = checkpoint if isinstance(checkpoint, dict) else {}
    missing = [key for key in _KEYS_OF_LIGHTNING_FILES if key not in found]
    if missing:
        raise StateError(
            f"{path} is no checkpoint of Lightning: it lacks {' and '.join(missing)}. (A "
            "state_dict saved by itself is loaded with guide.load_state_dict.)"
        )
    version = checkpoint["pytorch-lightning_version"]
    try:
        Version(version)
    except (InvalidVersion, TypeError) as error:
        raise StateError(
            f"{path} is no checkpoint of Lightning: its version is {shown(version)}."
        ) from error
