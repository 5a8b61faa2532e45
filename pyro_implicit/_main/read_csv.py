"""A CSV file as a table of numbers, by pandas, within the memory that there is."""

from __future__ import annotations

import re
import warnings
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np

from pyro_implicit.exceptions import MissingExtraError

from .columns import as_table
from .console import one_line
from .data import DataFileError, Table
from .header import index_note, is_index, numeric_header
from .table_file import SEPARATORS, Dialect, TableText, find_dialect, open_table

__all__ = ["HEADER_CHOICES", "load_csv"]

ROWS_PER_MEMORY_CHECK = 2**14
HEADER_CHOICES = ("auto", "yes", "no")


def load_csv(
    path: str | Path,
    header: str = "auto",
    target: str | None = None,
    separator: str | None = None,
) -> Table:
    """
    Reads a table of which one column is to be predicted from the others.

    Compression (gzip, bzip2, xz, zip), encoding (UTF-8, UTF-16, else Windows-1252) and separator
    are found out. With ``header="auto"`` a first row without any number is a header, and one of
    numbers is, if :func:`~pyro_implicit._main.header.numeric_header` says so. A first column that
    the header shows to be an index is left out. Whatever was guessed is told in ``Table.notes``.

    :param path: the file.
    :param str header: whether the first row is one: ``"yes"``, ``"no"`` or ``"auto"``.
    :param str target: name, or number from 1 on, of the column to predict; the last by default.
    :param str separator: between columns; found out by default.
    :raises DataFileError: if it cannot be read, is no such table of at least ten rows, or is larger
        than the memory.
    :raises MissingExtraError: without pandas.
    """
    path = Path(path)
    try:
        with open_table(path) as text:
            dialect = find_dialect(text.head, separator)
            frame, notes, hint = _frame(path, text, dialect, header)
            notes = [*text.notes, *dialect.notes, *notes]
    except DataFileError:
        raise
    except UnicodeError as error:
        raise DataFileError(f"{path}: is not a text file in UTF-8 ({error})") from error
    except (EOFError, zipfile.BadZipFile, zlib.error, LZMAError) as error:
        raise DataFileError(f"{path}: is compressed, and damaged ({error})") from error
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataFileError(f"{str(path)!r}: is not the name of a file ({error})") from error
    return as_table(path, frame, target, notes, hint)


def _frame(path: Path, text: TableText, dialect: Dialect, header: str) -> tuple[Any, Any, str]:
    """The cells under the names of their columns, what to tell of it, and a hint for errors."""
    if not dialect.rows:
        raise DataFileError(f"{path}: is empty; expected rows of numbers, the target last")
    first = dialect.rows[0]
    width = max(len(row) for row in dialect.rows[:2])
    if width < 2:
        raise DataFileError(
            f"{path}: one column found; expected at least two, separated by "
            f"{SEPARATORS.get(dialect.separator, repr(dialect.separator))}, the target last "
            "(--sep says how columns are separated)"
        )
    named = header == "yes" or (
        header == "auto" and not any(_is_number(cell, dialect.decimal) for cell in first)
    )
    frame = _parsed(path, text, dialect, named, [""] * (width - len(first)) + first)
    of_header = []
    if header == "auto" and not named and _all_numbers(frame):
        named, note = numeric_header(first, frame.to_numpy(np.float64)[1:])
        frame = frame.iloc[1:].reset_index(drop=True) if named else frame
        of_header.append(note)
    if not named:
        first = [str(place) for place in range(1, width + 1)]
    frame, notes = _without_index(path, frame, first, named, width)
    hint = "; if that is in a header, say --header yes" if header == "auto" and not named else ""
    return frame, [*of_header, *notes], hint


def _parsed(path: Path, text: TableText, dialect: Dialect, named: bool, first: list[str]) -> Any:
    """What pandas reads, some rows at a time."""
    pandas = _pandas()
    options: dict[str, Any] = {"names": range(len(first))} if named else {}
    options["sep"] = r"\s+" if dialect.separator == " " else dialect.separator
    if int(pandas.__version__.split(".")[0]) < 3:  # later ones read every digit by themselves
        options["float_precision"] = "round_trip"
    parts, rows = [], 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pandas.errors.DtypeWarning)
            for part in pandas.read_csv(
                text,
                header=0 if named else None,
                decimal=dialect.decimal,
                skipinitialspace=True,
                na_values=["?"],  # what the tables of UCI write for a gap
                chunksize=ROWS_PER_MEMORY_CHECK,
                **options,
            ):
                parts.append(part)
                rows += len(part)
                text.check_memory(
                    8 * rows * part.shape[1], f"{rows} rows of {part.shape[1]} columns"
                )
    except pandas.errors.EmptyDataError as error:
        raise DataFileError(f"{path}: is empty; expected rows of numbers") from error
    except pandas.errors.ParserError as error:
        raise DataFileError(f"{path}{_in_words(str(error))}") from error
    frame = pandas.concat(parts, ignore_index=True)
    return frame[~frame.isna().all(axis=1)].reset_index(drop=True)


def _in_words(message: str) -> str:
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", message)
    if found:
        return f", line {found[2]}: {found[3]} columns found, expected {found[1]}"
    return f": is not a CSV file ({one_line(message)})"


def _without_index(
    path: Path, frame: Any, first: list[str], named: bool, width: int
) -> tuple[Any, list[str]]:
    """Names for the columns; a first one that numbers the rows is taken off."""
    names = [cell.strip() for cell in [""] * (width - len(first)) + first]
    frame.columns = _unique(names)
    notes = []
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        listed = ", ".join(map(repr, twice))
        notes.append(f"several columns are called {listed}; the others have .1, .2, ... appended")
    column = _floats(frame.iloc[:, 0])
    if named and column is not None and is_index(names[0], column):
        if width < 3:
            raise DataFileError(
                f"{path}: one column found beside the index ({names[0]!r}); expected at least two, "
                "the target last"
            )
        shown = one_line(repr(names[0])) if names[0] else "without a name"
        notes.append(
            f"the first column ({shown}) numbers the rows and was left out; give it another name "
            "if it is a feature"
        )
        frame = frame.iloc[:, 1:]
        frame.attrs["left_out"] = names[0]
    elif column is not None:
        notes.append(index_note(column))
    return frame, notes


def _unique(names: list[str]) -> list[str]:
    found: list[str] = []
    for place, name in enumerate(names):
        name, count = name or f"column {place + 1}", 0
        unique = name
        while unique in found:
            count += 1
            unique = f"{name}.{count}"
        found.append(unique)
    return found


def _floats(column: Any) -> np.ndarray | None:
    """A column as numbers, if it is one of numbers without gaps and has some."""
    pandas = _pandas()
    if not pandas.api.types.is_numeric_dtype(column) or len(column) < 2:
        return None
    values = column.to_numpy(np.float64)
    return values if np.isfinite(values).all() else None


def _all_numbers(frame: Any) -> bool:
    return all(_floats(frame[name]) is not None for name in frame.columns)


def _is_number(cell: str, decimal: str) -> bool:
    try:
        float(cell.replace(decimal, "."))
    except ValueError:
        return False
    return "_" not in cell  # Python reads 1_000 as a number, spreadsheets do not


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError(
            'tables are read by pandas, which is not installed: pip install "pyro-implicit[main]"'
        ) from error
    return pandas
