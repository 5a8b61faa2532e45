"""The folder of the main job's files: looked at before the fits, written to file by file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyro_implicit._files import atomic_path
from pyro_implicit.exceptions import ArgumentError, ImplicitError

__all__ = ["Outputs", "check_folder"]


def check_folder(folder: Path, names: tuple[str, ...], num_bytes: int) -> None:
    """
    Finds out before the fits, without leaving anything, that files can be written to a folder.

    :param folder: which need not be there yet.
    :param names: of the files.
    :param int num_bytes: that they will hold, at least.
    :raises ArgumentError: if it is no folder, cannot be written to or has too little space, or if a
        folder stands where a file is to be.
    """
    option = f"--output-dir {folder}"
    if "\0" in str(folder):
        raise ArgumentError(f"--output-dir {str(folder)!r}: a name cannot hold a NUL character")
    try:
        existing = Path(os.path.abspath(folder))
        while not os.path.lexists(existing) and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise ArgumentError(f"{option}: {existing} is not a folder")
        for name in names:
            if (folder / name).is_dir():
                raise ArgumentError(f"{option}: {name} in it is a folder; a file is to be there")
        with tempfile.TemporaryFile(dir=existing):
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise ArgumentError(f"{option}: cannot be written to ({error.strerror})") from error
    if free < num_bytes:
        raise ArgumentError(
            f"{option}: about {num_bytes / 2**20:.3g} MiB are needed; {free / 2**20:.3g} are free"
        )


class Outputs:
    """
    Files in one folder, each whole or absent; what goes wrong with one does not touch the others.

    :param folder: made when the first file is written.
    :param written: the paths so far.
    :param failures: one line for each file that could not be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self.failures: list[str] = []

    def write(self, name: str, content: Callable[[], bytes]) -> None:
        """
        Writes one file; what goes wrong is kept and not raised.

        :param str name: of the file.
        :param content: makes what it holds. Its errors of memory, of the system and of this package
            are kept in ``failures``, as those of writing are.
        """
        path = self.folder / name
        try:
            data = content()
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as part:
                part.write_bytes(data)
        except (ImplicitError, MemoryError, OSError) as error:
            earlier = "; the file there is of an earlier run" if path.exists() else ""
            self.failures.append(f"{path} was not written: {describe(error)}{earlier}")
        else:
            self.written.append(path)


def describe(error: BaseException) -> str:
    """
    Describes an error in one line.

    :param error: any.
    :returns: a line on it.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError) and not isinstance(error, ImplicitError):
        return "out of memory"
    return str(error) or type(error).__name__
