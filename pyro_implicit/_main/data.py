"""Tables for the main job: the bundled real data or a CSV file, checked before any work is done."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, MissingExtraError

MIN_ROWS = 10
TEST_FRACTION = 0.1


class DataFileError(ImplicitError, ValueError):
    """A data file that cannot be used; the message is one line that says where and why."""


@dataclass(frozen=True)
class Table:
    """A regression table: features [N, D], target [N], both finite, and a name to show."""

    name: str
    features: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class Split:
    """A standardised train and test part; the test target stays in its own units.

    ``x_train`` [N, D], ``y_train`` [N], ``x_test`` [M, D], ``y_test`` [M]; a standardised target
    ``t`` means ``y_mean + y_scale * t``.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    y_mean: float
    y_scale: float


def load_bundled() -> Table:
    """
    The diabetes data that come with scikit-learn (442 patients, 10 features).

    :raises MissingExtraError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise MissingExtraError(
            "the default data need scikit-learn, which is not installed: "
            'pip install "pyro-implicit[tutorials]", or give a table with --data FILE.csv'
        ) from error
    features, target = load_diabetes(return_X_y=True)
    return Table("diabetes (scikit-learn)", features, target)


def load_csv(path: str | Path) -> Table:
    """
    Reads a comma-separated table of numbers with the target in the last column.

    The first row may be a header; blank lines are skipped.

    :param path: the file.
    :raises DataFileError: if it cannot be read, or is no such table of at least ten rows.
    """
    path = Path(path)
    rows = _parse(path, _read(path))
    if len(rows) < MIN_ROWS:
        raise DataFileError(f"{path}: {len(rows)} data rows found, at least {MIN_ROWS} are needed")
    values = np.array(rows, dtype=np.float64)
    return Table(path.name, values[:, :-1], values[:, -1])


def _read(path: Path) -> list[tuple[int, list[str]]]:
    """The non-blank rows of the file, each with the number of its line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise DataFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path}: is not a text file in UTF-8") from error
    except csv.Error as error:
        raise DataFileError(f"{path}: is not a CSV file ({error})") from error
    if not rows:
        raise DataFileError(f"{path}: is empty; expected rows of numbers, the target last")
    return rows


def _parse(path: Path, rows: list[tuple[int, list[str]]]) -> list[list[float]]:
    """Numbers of all rows below the header, every row of the header's (or first row's) width."""
    width = len(rows[0][1])
    if width < 2:
        raise DataFileError(
            f"{path}: one column found; expected at least two, separated by commas, the target last"
        )
    if not any(_is_number(cell) for cell in rows[0][1]):
        rows = rows[1:]
    for line, row in rows:
        if len(row) != width:
            raise DataFileError(f"{path}, line {line}: {len(row)} columns found, expected {width}")
    return [
        [_number(path, line, column, cell) for column, cell in enumerate(row, start=1)]
        for line, row in rows
    ]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python reads 1_000 as a number, spreadsheets do not


def _number(path: Path, line: int, column: int, cell: str) -> float:
    where = f"{path}, line {line}, column {column}"
    if not cell.strip():
        raise DataFileError(f"{where}: an empty cell; expected a number")
    if not _is_number(cell):
        raise DataFileError(f"{where}: {_shorten(cell)!r} is not a number")
    value = float(cell)
    if not math.isfinite(value):
        raise DataFileError(f"{where}: {_shorten(cell)!r} is not a finite number")
    return value


def _shorten(cell: str) -> str:
    return cell if len(cell) <= 30 else cell[:27] + "..."


def split_table(table: Table, seed: int) -> Split:
    """
    Draws a tenth of the rows for testing, and standardises all by the mean and scale of the rest.

    :param Table table: the rows.
    :param int seed: of the random choice; it leaves the global generators alone.
    :raises DataFileError: if the target of the training rows is constant, or a column too large.
    """
    num_test = max(1, round(TEST_FRACTION * len(table.target)))
    order = np.random.default_rng(seed).permutation(len(table.target))
    test, train = order[:num_test], order[num_test:]
    x_mean, x_scale = _mean_and_scale(table.features[train])
    y_mean, y_scale = _mean_and_scale(table.target[train])
    if not (np.isfinite(x_scale).all() and np.isfinite(y_scale)):
        raise DataFileError(f"{table.name}: a column has values too large to standardise")
    if y_scale == 0.0:
        raise DataFileError(f"{table.name}: the target (last column) is constant in training rows")
    constant = x_scale == 0.0  # nothing can be learned from such a column
    x = np.where(constant, 0.0, (table.features - x_mean) / np.where(constant, 1.0, x_scale))
    y = (table.target - y_mean) / y_scale

    def part(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.get_default_dtype())

    return Split(
        name=table.name,
        x_train=part(x[train]),
        y_train=part(y[train]),
        x_test=part(x[test]),
        y_test=torch.as_tensor(table.target[test], dtype=torch.float64),
        y_mean=float(y_mean),
        y_scale=float(y_scale),
    )


def _mean_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per column; a scale of mere rounding counts as zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = values.mean(axis=0), values.std(axis=0)
        return mean, np.where(scale <= 1e-12 * np.abs(values).max(axis=0), 0.0, scale)
