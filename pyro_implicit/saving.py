"""Saved states in files: written whole or not at all, and read only if no bit has changed."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from pyro_implicit._files import atomic_path
from pyro_implicit.exceptions import ArgumentError, StateError

__all__ = ["check_archive", "load_state", "save_state"]


def save_state(state: Any, path: str | Path) -> None:
    """
    ``torch.save`` for a state of this package: ``save_state(guide.state_dict(), "guide.pt")``.

    A kill or a power cut at any instant leaves the new file or the old one.

    :param state: tensors and plain values.
    :param path: a local file, which is replaced.
    :raises ArgumentError: for a guide or chains in place of their state.
    :raises StateError: if it holds anything else; an older file is left as it was.
    :raises OSError: if the file cannot be written; likewise.
    """
    if callable(getattr(state, "state_dict", None)):
        kind = type(state).__name__
        raise ArgumentError(
            f"the state is a {kind} itself; expected what it holds. Write save_state("
            f"{kind[:1].lower() + kind[1:]}.state_dict(), path)."
        )
    with atomic_path(path, check=_check_readable) as partial, partial.open("wb") as file:
        try:
            torch.save(state, file)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise StateError(
                "the state holds something that is neither tensor nor plain value, and cannot be "
                f"saved: {error}. Save the state_dict of each part that has one."
            ) from error


def load_state(path: str | Path, map_location: Any = "cpu") -> Any:
    """
    Reads a saved state without running code from the file, and only if no bit has changed.

    It may come from :func:`save_state` or ``torch.save``, and is read with ``weights_only=True``:
    ``torch.load`` itself does not look at the checksums that the file has.

    :param path: a local file.
    :param map_location: as for ``torch.load``.
    :returns: the state, for ``load_state_dict``.
    :raises StateError: if it is truncated or damaged, or holds more than tensors and plain values.
    :raises FileNotFoundError: if there is no such file.
    """
    with Path(path).open("rb") as file:
        check_archive(file, str(path))
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except Exception as error:  # the unpickler may raise anything
            raise unreadable(str(path), error) from error


def check_archive(file: IO[bytes], name: str) -> None:
    """
    Compares all of a file of ``torch.save`` with its checksums.

    :param file: open, at its beginning; so is it afterwards.
    :param str name: of it, for the message.
    :raises StateError: if it is truncated or damaged, or no such file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except Exception as error:  # a damaged directory leads the reader anywhere
        raise unreadable(name, error) from error
    if damaged is not None:
        raise unreadable(name, f"{damaged} does not agree with its checksum")
    file.seek(0)


def unreadable(name: str, why: BaseException | str) -> StateError:
    """The error for a file that is not as it was written."""
    text = str(why).strip() or type(why).__name__
    return StateError(
        f"{name} cannot be read as a checkpoint: it is truncated or damaged, or not a file of "
        f"torch.save with tensors and plain values alone ({text.splitlines()[0]})."
    )


def _check_readable(path: Path) -> None:
    try:
        torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        line = str(error).strip().splitlines()[0]
        raise StateError(
            "the checkpoint holds something that is neither tensor nor plain value, and could not "
            f"be read back with weights_only=True: {line} Look at callbacks' state_dict and at "
            "save_hyperparameters()."
        ) from error
