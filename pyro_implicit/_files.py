"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["atomic_path"]

#: nobody writes for so long without writing anything
_STALE_SECONDS = 3600.0


@contextmanager
def atomic_path(
    target: str | Path, *, suffix: str = ".partial", check: Callable[[Path], object] | None = None
) -> Iterator[Path]:
    """
    Gives an empty file to write to, which takes the place of ``target`` when the block ends.

    It lies in the same folder and moves in one step; if the block raises, or the process dies,
    ``target`` stays as it was::

        with atomic_path("figure.png") as path:
            figure.savefig(path, format="png")

    The name is random and the file new (``O_EXCL``): two writers do not disturb each other, and the
    last to end wins; a link that was planted there is not followed. Its permissions are those of
    any new file. What it holds is flushed to the disk before it takes the name, and the name
    afterwards. What a killed writer left is removed by the next writer of that name, after an hour.

    :param target: the file to make or replace; a link is replaced, not followed.
    :param str suffix: end of the temporary name, for writers that look at it.
    :param check: called with the temporary file after it was flushed; what it raises is raised, and
        ``target`` stays as it was.
    :raises OSError: if the folder is absent, the disk is full, or ``target`` is a folder.
    """
    target = Path(target)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder stands where the file is to be", target)
    _remove_stale(target, suffix)
    path = target.with_name(f".{target.name}.{secrets.token_hex(8)}{suffix}")
    # not tempfile.mkstemp, which takes the rights of group and others away
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield path
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        if check is not None:
            check(path)
        os.replace(path, target)
    finally:
        path.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _remove_stale(target: Path, suffix: str) -> None:
    begin = f".{target.name}."
    with suppress(OSError):
        for path in target.parent.iterdir():
            ours = path.name.startswith(begin) and path.name.endswith(suffix)
            if ours and time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                path.unlink()


def _sync_folder(folder: Path) -> None:
    """Lets the new name survive a power cut, where the system allows it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
