"""A table's file as text: decompressed, decoded, and how its columns are separated."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import re
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pyro_implicit._memory import free_memory

from .data import DataFileError

__all__ = ["Dialect", "TableText", "find_dialect", "open_table"]

HEAD_SIZE = 2**16  # bytes that encoding and separator are told by; and characters read at a time
MAX_LINE_CHARACTERS = 2**24  # a file without line breaks is no table, and may have no end
NUM_COPIES_IN_MEMORY = 6  # of the numbers, while they are read, split and standardised
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "blanks"}
PATTERN_OF_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*\Z")
_OPENERS_BY_MAGIC_BYTES: dict[bytes, tuple[str, Any]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ\x00": ("xz", lzma.open),
}


@dataclass(frozen=True)
class Dialect:
    """How cells are separated and numbers are written; the first rows, and what to tell of it."""

    separator: str = ","
    decimal: str = "."
    rows: list[list[str]] = field(default_factory=list)
    notes: tuple[str, ...] = ()


class TableText(io.TextIOBase):
    """
    The text of a file for a reader of tables, none of its lines too long.

    :param path: of the file, for messages.
    :param stream: its decoded text.
    :param raw: the file below it, closed with it.
    :param int size: of the file in bytes, 0 if nobody can tell or it is compressed.
    :param str head: the text at its beginning, which is not read by it.
    :param notes: how it was read.
    """

    def __init__(
        self, path: Path, stream: IO[str], raw: Any, size: int, head: str, notes: tuple[str, ...]
    ) -> None:
        self.path, self.stream, self.raw, self.size = path, stream, raw, size
        self.head, self.notes = head, notes
        self.count = self._since_break = 0

    def readable(self) -> bool:
        """True: it is there to be read."""
        return True

    def read(self, size: int | None = -1) -> str:
        """The next characters; of no line more than ``MAX_LINE_CHARACTERS``."""
        text = self.stream.read(HEAD_SIZE if size is None or size < 0 else min(size, HEAD_SIZE))
        _refuse_nul(self.path, text)
        first, last = text.find("\n"), text.rfind("\n")
        if self._since_break + (len(text) if first < 0 else first) > MAX_LINE_CHARACTERS:
            raise DataFileError(
                f"{self.path}: has a line of more than {MAX_LINE_CHARACTERS} characters"
            )
        self._since_break = len(text) - last - 1 + (self._since_break if last < 0 else 0)
        self.count += len(text)
        return text

    def close(self) -> None:
        """Closes the file too."""
        self.stream.close()
        self.raw.close()
        super().close()

    def check_memory(self, held: int, what: str) -> None:
        """Refuses a file whose numbers, at the rate so far, will not fit."""
        needed = NUM_COPIES_IN_MEMORY * held * max(1.0, self.size / max(self.count, 1))
        free = free_memory() + held
        if needed > free:
            raise DataFileError(
                f"{self.path}: is too large: the first {what} of it say that it takes "
                f"{needed / 2**30:.3g} GiB of memory; {free / 2**30:.3g} GiB are free. "
                "Take fewer rows or columns"
            )


def open_table(path: Path) -> TableText:
    """
    Opens a file as text, whatever compresses and encodes it.

    :param path: of the file.
    :returns: its text; to be closed.
    :raises DataFileError: if it is no text.
    :raises OSError: if it cannot be read.
    """
    raw: Any = path.open("rb")
    try:
        return _as_text(path, raw)
    except BaseException:
        raw.close()
        raise


def _as_text(path: Path, raw: Any) -> TableText:
    status = os.fstat(raw.fileno())
    # what is no regular file tells no size: then what was read is all that is known
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    binary, how = _decompressed(path, raw)
    notes = [f"the file is compressed ({how})"] if how else []
    head = binary.peek(HEAD_SIZE)
    encoding = _encoding(path, head)
    if not encoding.startswith("utf-8"):
        notes.append(f"the file is encoded in {encoding}")
    text = io.TextIOWrapper(binary, encoding, newline="")
    decoder = codecs.getincrementaldecoder(encoding)()
    start = decoder.decode(head)
    _refuse_nul(path, start)
    return TableText(path, text, raw, 0 if how else size, start, tuple(notes))


def _refuse_nul(path: Path, text: str) -> None:
    if "\0" in text:
        raise DataFileError(f"{path}: has NUL characters, and so is not a text file")


def _decompressed(path: Path, raw: Any) -> tuple[io.BufferedReader, str]:
    start = raw.peek(6)
    for magic, (how, opener) in _OPENERS_BY_MAGIC_BYTES.items():
        if start.startswith(magic):
            return io.BufferedReader(opener(raw, "rb"), HEAD_SIZE), how
    if start.startswith(b"PK\x03\x04"):
        archive = zipfile.ZipFile(raw)
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if len(names) != 1:
            raise DataFileError(f"{path}: holds {len(names)} files; expected one table")
        inner: Any = archive.open(names[0])
        return io.BufferedReader(inner, HEAD_SIZE), f"zip, {names[0]}"
    return io.BufferedReader(raw, HEAD_SIZE), ""


def _encoding(path: Path, head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if len(head) >= 4 and not any(head[1:64:2]) and all(head[0:64:2]):
        return "utf-16-le"
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def find_dialect(head: str, separator: str | None) -> Dialect:
    """
    Tells how columns are separated, and whether decimals are written with a comma.

    :param str head: the beginning of a file.
    :param str separator: that asked for, or None.
    :returns: the dialect, with the rows of the head.
    """
    lines = [line for line in head.splitlines() if line.strip(" ,;\t|")]
    if len(head) >= HEAD_SIZE // 4 and len(lines) > 1:
        lines = lines[:-1]  # it may be cut
    lines = lines[:100]
    chosen = separator or _likely(lines)
    rows = _rows(lines, chosen)
    cells = [cell for row in rows for cell in row]
    decimal = "," if chosen != "," and any(map(PATTERN_OF_DECIMAL_COMMA.match, cells)) else "."
    notes: tuple[str, ...] = ()
    if separator is None and chosen != ",":
        name = SEPARATORS.get(chosen, chosen)
        commas = ", decimals written with commas" if decimal == "," else ""
        notes = (f"columns were read as separated by {name}{commas}; --sep says otherwise",)
    return Dialect(chosen, decimal, rows, notes)


def _rows(lines: list[str], separator: str) -> list[list[str]]:
    try:
        if separator == " ":
            return [line.split() for line in lines]
        return list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error:
        return []


def _likely(lines: list[str]) -> str:
    """The separator with which most lines have the same number of columns; a comma if none."""
    fitting = []
    for separator in SEPARATORS:
        counts = [len(row) for row in _rows(lines, separator)]
        usual = max(set(counts), key=counts.count, default=0)
        if usual > 1 and counts.count(usual) >= 0.8 * len(counts):
            fitting.append(separator)
    strong = [separator for separator in fitting if separator in ";\t|"]
    if strong:  # commas beside them are those of decimals
        return strong[0]
    return fitting[0] if fitting else ","
