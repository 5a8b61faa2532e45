"""What each column of a table is: numbers, kinds, an index or nothing."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import numpy as np

from .console import one_line
from .data import DataFileError, Table

__all__ = ["as_table"]

MIN_ROWS = 10
MAX_KINDS_OF_TEXT = 20

_MAX_LABELS = 10  # a target of so few whole numbers may hold labels
_CODES_OF_NO_VALUE = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999)
_PATTERN_OF_THOUSANDS = re.compile(r"[-+]?\d{1,3}([,' ]\d{3})+([.]\d+)?")
_MIN_REPEATS_OF_CODE = 3  # a number that is found as often, far from all others, is no chance


def as_table(path: Path, frame: Any, target: str | None, notes: list[str], hint: str) -> Table:
    """
    Makes numbers of a table's columns.

    Rows with an empty cell are left out, and so are columns without any number or with one value;
    text of a few kinds becomes a column for each kind. What was decided is told in the notes.

    :param path: of the file, for messages.
    :param frame: the table, a ``pandas.DataFrame``.
    :param str target: the column to predict; the last by default.
    :param notes: what is told already.
    :param str hint: what to say of text where numbers are expected.
    :raises DataFileError: if there is no such column, or what there is cannot be used.
    """
    notes = list(notes)
    name = _target_name(path, frame, target)
    frame = _without_gaps(path, frame, name, notes)
    features, names = [], []
    for other in frame.columns:
        if other == name:
            continue
        for label, values in _feature(path, frame, other, notes, hint):
            names.append(label)
            features.append(values)
    column, classes = _target(path, frame, name, hint)
    notes.append("" if classes else _looks_like_labels(name, column))
    numbers = [*zip(names, features, strict=True), *([] if classes else [(name, column)])]
    notes.extend(_looks_like_a_code(label, values) for label, values in numbers)
    if not features:
        raise DataFileError(f"{path}: no column is left to predict {name!r} from")
    return Table(
        one_line(path.name),
        np.stack(features, 1),
        column,
        tuple(dict.fromkeys(note for note in notes if note)),
        tuple(one_line(one) for one in names),
        one_line(name),
        tuple(one_line(one) for one in classes),
    )


def _looks_like_labels(name: str, values: np.ndarray) -> str:
    """What to say of a target of few whole numbers; empty for others."""
    few = np.unique(values)
    if len(few) > _MAX_LABELS or len(values) < 10 * len(few) or bool((few != few.round()).any()):
        return ""
    return (
        f"{name!r} has {len(few)} whole numbers alone and was taken for a quantity; if these are "
        "labels, write them as text (c1, c2, ...) to predict classes"
    )


def _looks_like_a_code(name: str, values: np.ndarray) -> str:
    """What to say of a column where -999 or the like may stand for no value; empty for others."""
    for code in _CODES_OF_NO_VALUE:
        rest = values[values != code]
        count = len(values) - len(rest)
        if count < _MIN_REPEATS_OF_CODE or not len(rest):
            continue
        gap = max(rest.min() - code, code - rest.max())
        if gap > rest.max() - rest.min():
            return (
                f"{name!r} is {code} in {count} rows, far from its other values, and was taken at "
                "its word; if that stands for no value, leave these cells empty"
            )
    return ""


def _target_name(path: Path, frame: Any, target: str | None) -> str:
    columns = list(frame.columns)
    if target is None:
        last: str = columns[-1]
        return last
    if target in columns:
        if f"{target}.1" in columns:
            raise DataFileError(f"{path}: several columns are called {target!r}; rename the target")
        return target
    left_out = [frame.attrs["left_out"]] if "left_out" in frame.attrs else []
    in_file = [*left_out, *columns]  # numbers are those of the file's columns
    chosen: str = target
    if target.isdigit() and 1 <= int(target) <= len(in_file):
        chosen = in_file[int(target) - 1]
    if chosen in left_out:
        raise DataFileError(
            f"{path}: the first column ({chosen!r}) numbers the rows and was left out; give it "
            "another name if it is to be predicted"
        )
    if chosen in columns:
        return chosen
    near = difflib.get_close_matches(target, columns, 1)
    meant = f"; is it {near[0]!r}?" if near else "."
    shown = ", ".join(columns[:10]) + (", ..." if len(columns) > 10 else "")
    raise DataFileError(f"{path}: no column is called {target!r}{meant} There are {shown}")


def _without_gaps(path: Path, frame: Any, target: str, notes: list[str]) -> Any:
    """Leaves out columns and rows that have nothing."""
    empty = [name for name in frame.columns if frame[name].isna().all()]
    if target in empty and len(frame):
        raise DataFileError(f"{path}: the target {target!r} is empty in every row")
    if empty and len(frame):
        notes.append(f"columns without any value were left out: {', '.join(map(repr, empty))}")
        frame = frame.drop(columns=empty)
    gaps = frame.isna()
    lacking = gaps.any(axis=1)
    count, rows = int(lacking.sum()), len(frame)
    if count:
        most = gaps.sum().idxmax()
        notes.append(
            f"{count} of {rows} rows have a cell that is empty, NA or ? (most in column {most!r}) "
            "and were left out"
        )
        frame = frame[~lacking]
    if len(frame) < MIN_ROWS:
        whole = " without an empty cell" if count else ""
        raise DataFileError(
            f"{path}: {len(frame)} data rows found{whole}, at least {MIN_ROWS} are needed"
        )
    return frame


def _target(path: Path, frame: Any, name: str, hint: str) -> tuple[np.ndarray, list[str]]:
    """The column to predict, and the names of its classes if it has some."""
    column = frame[name]
    if column.dtype == bool or not _is_numeric(path, column, name, hint):
        kinds = sorted(set(column.astype(str).str.strip()))
        if not 2 <= len(kinds) <= MAX_KINDS_OF_TEXT:
            raise DataFileError(
                f"{path}: the target {name!r} holds text of {len(kinds)} kinds; expected numbers, "
                f"or 2 to {MAX_KINDS_OF_TEXT} classes"
            )
        places = {kind: place for place, kind in enumerate(kinds)}
        return column.astype(str).str.strip().map(places).to_numpy(np.float64), kinds
    return _numbers(path, column, name, hint), []


def _feature(
    path: Path, frame: Any, name: str, notes: list[str], hint: str
) -> list[tuple[str, np.ndarray]]:
    """The columns of numbers that are made of one column."""
    column = frame[name]
    if column.nunique() < 2:
        notes.append(f"column {name!r} has one value alone and was left out")
        return []
    if _is_numeric(path, column, name, hint):
        return [(name, _numbers(path, column, name, hint))]
    kinds = sorted(set(column.astype(str)))
    if len(kinds) > MAX_KINDS_OF_TEXT:
        raise DataFileError(
            f"{path}: column {name!r} holds text of {len(kinds)} kinds, such as "
            f"{_shorten(kinds[0])!r}; expected numbers, or {MAX_KINDS_OF_TEXT} kinds at most. Take "
            "the column out, or make numbers of it"
        )
    notes.append(f"column {name!r} holds text of {len(kinds)} kinds, and became a column for each")
    text = column.astype(str)
    return [(f"{name}={kind}", (text == kind).to_numpy(np.float64)) for kind in kinds]


def _is_numeric(path: Path, column: Any, name: str, hint: str) -> bool:
    """Whether a column holds numbers; an error if most of it does, and some is text."""
    import pandas

    if pandas.api.types.is_numeric_dtype(column):
        return True
    try:
        bad = pandas.to_numeric(column, errors="coerce").isna()
    except OverflowError:  # an integer of hundreds of digits
        bad = column.astype(str).str.len() > 300
    if bad.mean() > 0.5:
        return False
    row = int(bad.to_numpy().argmax())
    text = str(column.iloc[row])
    raise DataFileError(
        f"{path}: data row {column.index[row] + 1}, column {name!r}: "
        f"{_shorten(text)!r} is not a number{_remedy(text)}{hint}"
    )


def _remedy(text: str) -> str:
    """What to write in place of two usual forms."""
    if not any(character.isalnum() for character in text):
        return " (leave a missing value empty, or write NA)"
    if _PATTERN_OF_THOUSANDS.fullmatch(text.strip()):
        return " (leave out what separates thousands)"
    return ""


def _numbers(path: Path, column: Any, name: str, hint: str) -> np.ndarray:
    values: np.ndarray = column.to_numpy(np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        raise DataFileError(
            f"{path}: data row {column.index[row] + 1}, column {name!r}: {values[row]} is not a "
            "finite number"
        )
    return values


def _shorten(cell: str) -> str:
    return cell if len(cell) <= 30 else cell[:27] + "..."
