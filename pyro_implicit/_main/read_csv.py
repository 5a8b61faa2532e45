"""A CSV file as numbers: read row by row, within the memory that there is."""

from __future__ import annotations

import csv
import math
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from pyro_implicit._memory import free_memory

from .console import one_line
from .data import DataFileError, Table
from .header import index_note, is_index, numeric_header

__all__ = ["HEADER_CHOICES", "load_csv"]

MIN_ROWS = 10
MAX_LINE = 2**24  # characters; a file without line breaks is no table, and may have no end
CHECK_EVERY = 2**14  # rows
COPIES = 6  # of the numbers, that reading, splitting and standardising hold at a time
HEADER_CHOICES = ("auto", "yes", "no")


def load_csv(path: str | Path, header: str = "auto") -> Table:
    """
    Reads a comma-separated table of numbers with the target in the last column.

    Blank lines are skipped. With ``header="auto"`` a first row without any number is a header, and
    one of numbers is, if :func:`~pyro_implicit._main.header.numeric_header` says so. A first column
    that the header shows to be an index is left out. Whatever was guessed is told in
    ``Table.notes``.

    :param path: the file.
    :param str header: whether the first row is one: ``"yes"``, ``"no"`` or ``"auto"``.
    :raises DataFileError: if it cannot be read, is no such table of at least ten rows, or is larger
        than the memory.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first, values = _read(path, file, header)
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path}: is not a text file in UTF-8") from error
    except csv.Error as error:
        raise DataFileError(f"{path}: is not a CSV file ({error})") from error
    except ValueError as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"{str(path)!r}: is not the name of a file ({error})") from error
    return _table(path, first, values, header)


def _table(path: Path, first: list[str] | None, values: np.ndarray, header: str) -> Table:
    """The table, after a look at what may be a header or an index; ``first`` is the first row."""
    notes = []
    is_header = header == "yes" or (first is not None and not any(map(_is_number, first)))
    if header == "auto" and first is not None and not is_header:
        is_header, note = numeric_header(first, values[1:])
        values = values[1:] if is_header else values
        notes.append(note)
    if len(values) < MIN_ROWS:
        raise DataFileError(
            f"{path}: {len(values)} data rows found, at least {MIN_ROWS} are needed"
        )
    if is_header and first is not None and is_index(first[0], values[:, 0]):
        if values.shape[1] < 3:
            raise DataFileError(
                f"{path}: one column found beside the index ({first[0].strip()!r}); expected at "
                "least two, the target last"
            )
        name = first[0].strip()
        values = values[:, 1:]
        notes.append(
            f"the first column ({one_line(repr(name)) if name else 'without a name'}) numbers the "
            "rows and was left out; give it another name if it is a feature"
        )
    else:
        notes.append(index_note(values[:, 0]))
    name = one_line(path.name)
    return Table(name, values[:, :-1], values[:, -1], tuple(note for note in notes if note))


def _read(path: Path, file: TextIO, header: str) -> tuple[list[str], np.ndarray]:
    """The cells of the first row, and all numbers: without that row if it is a header of text."""
    lines = _Lines(path, file)
    reader = csv.reader(lines)
    rows = ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
    line, first = next(rows, (0, None))
    if first is None:
        raise DataFileError(f"{path}: is empty; expected rows of numbers, the target last")
    width = len(first)
    if width < 2:
        raise DataFileError(
            f"{path}: one column found; expected at least two, separated by commas"
            f"{_other_separator(first[0])}, the target last"
        )
    numbers = array("d")
    skip = header == "yes" or (header == "auto" and not any(map(_is_number, first)))
    if not skip:
        hint = "; if that is a header, say --header yes" if header == "auto" else ""
        numbers.extend(_numbers(path, line, first, hint))
    for count, (line, row) in enumerate(rows):
        if len(row) != width:
            raise DataFileError(f"{path}, line {line}: {len(row)} columns found, expected {width}")
        numbers.extend(_numbers(path, line, row))
        if count % CHECK_EVERY == CHECK_EVERY - 1:
            lines.check_memory(8 * len(numbers), f"{count + 1} rows of {width} columns")
    return first, np.frombuffer(numbers, dtype=np.float64).reshape(-1, width)


class _Lines:
    """The lines of a file, none too long, and how much memory all of them will take."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.file = path, file
        status = os.fstat(file.fileno())
        # what is no regular file tells no size: then what was read is all that is known
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        while line := self.file.readline(MAX_LINE):
            if len(line) == MAX_LINE:
                raise DataFileError(f"{self.path}: has a line of more than {MAX_LINE} characters")
            self.read += len(line)
            yield line

    def check_memory(self, held: int, what: str) -> None:
        """Refuses a file whose numbers, at the rate so far, will not fit."""
        needed = COPIES * held * max(1.0, self.size / self.read)
        free = free_memory() + held
        if needed > free:
            raise DataFileError(
                f"{self.path}: is too large: the first {what} of it say that it takes "
                f"{needed / 2**30:.3g} GiB of memory; {free / 2**30:.3g} GiB are free. "
                "Take fewer rows or columns"
            )


def _numbers(path: Path, line: int, row: list[str], hint: str = "") -> Iterator[float]:
    for column, cell in enumerate(row, start=1):
        where = f"{path}, line {line}, column {column}"
        if not cell.strip():
            raise DataFileError(f"{where}: an empty cell; expected a number{hint}")
        if not _is_number(cell):
            raise DataFileError(f"{where}: {_shorten(cell)!r} is not a number{hint}")
        value = float(cell)
        if not math.isfinite(value):
            raise DataFileError(f"{where}: {_shorten(cell)!r} is not a finite number")
        yield value


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python reads 1_000 as a number, spreadsheets do not


def _other_separator(cell: str) -> str:
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if separator in cell:
            return f" (there are {name})"
    return ""


def _shorten(cell: str) -> str:
    return cell if len(cell) <= 30 else cell[:27] + "..."
