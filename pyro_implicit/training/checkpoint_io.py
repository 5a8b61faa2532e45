"""Checkpoint files that are complete or absent, and hold nothing but tensors and plain values."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from pyro_implicit.exceptions import ArgumentError, StateError

__all__ = ["AtomicCheckpointIO"]

_PARTIAL = ".partial"
#: what every file that Lightning has written holds
_EXPECTED = ("state_dict", "pytorch-lightning_version")


class AtomicCheckpointIO(TorchCheckpointIO):
    """
    How Lightning reads and writes checkpoints in the local file system, made safe against a kill or
    a power cut at any instant: the file is written under another name (``*.partial``), flushed to
    the disk, read back (its structure, without the tensors' contents), and only then takes the
    place of the old one, in one step. Files are read with ``weights_only=True``, so that none can
    run code.

    :class:`~pyro_implicit.LightningVI` takes it in the place of Lightning's default by itself; any
    other Lightning module takes ``Trainer(plugins=[AtomicCheckpointIO()])``. Remote paths (with
    ``://``) are written by Lightning's own class: an object store replaces whole files anyway.
    """

    @classmethod
    def replace_default(cls, strategy: Any) -> None:
        """Takes the place of Lightning's default, not of a class that the user chose."""
        if type(strategy.checkpoint_io) is TorchCheckpointIO:
            strategy.checkpoint_io = cls()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """
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
        partial = target.with_name(target.name + _PARTIAL)
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            _check_readable(partial)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(target.parent)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """
        :param path: a file written by Lightning.
        :param map_location: as for ``torch.load``.
        :param bool weights_only: True or None, which is the same here.
        :raises StateError: if it is truncated, damaged, or no checkpoint.
        :raises ArgumentError: for ``weights_only=False``.
        :raises FileNotFoundError: if there is no such file.
        """
        if weights_only is False:
            raise ArgumentError(
                "weights_only=False would let the file run code; what LightningVI saves does not "
                "need it. Leave it out."
            )
        try:
            checkpoint = super().load_checkpoint(path, map_location, weights_only=True)
        except FileNotFoundError:
            raise
        except (
            OSError,
            RuntimeError,
            EOFError,
            pickle.UnpicklingError,
            LookupError,
            ValueError,
        ) as error:
            raise StateError(
                f"{path} cannot be read as a checkpoint: it is truncated or damaged, or not a file "
                f"of torch.save with tensors and plain values alone ({_first_line(error)})."
            ) from error
        missing = [
            key for key in _EXPECTED if not (isinstance(checkpoint, dict) and key in checkpoint)
        ]
        if missing:
            raise StateError(
                f"{path} is no checkpoint of Lightning: it lacks {' and '.join(missing)}. (A "
                "state_dict saved by itself is loaded with guide.load_state_dict.)"
            )
        return checkpoint


def _check_readable(path: Path) -> None:
    try:
        torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise StateError(
            "the checkpoint holds something that is neither tensor nor plain value, and could not "
            f"be read back with weights_only=True: {_first_line(error)} Look at callbacks' "
            "state_dict and at save_hyperparameters()."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Lets the new name survive a power cut, where the system allows it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
